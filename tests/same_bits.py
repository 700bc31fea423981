"""The one place where the suite compares bits of floats, and why it may.

Two computations have the same bits on every processor only if they are the same computation in the same shape. Other
comparisons of floats are to rounding. `tests/contract/test_comparisons.py` allows no other way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import torch


class Reason(StrEnum):
    """Why two results have the same bits on every processor."""

    SAME_CALL = "the same call in the same shape, twice"
    SAME_RUN = "the same training, whatever stopped it, watched it or captured it"
    SAVED = "what was saved, and what is loaded"
    RECOMPUTED = "activations that are computed again in the backward pass"
    CAUSAL = "the same call with other inputs at later positions, or in other rows, of which this result is independent"
    IDENTITY = "a factor of exactly one, or an addition of exactly zero, at the start"
    GOLDEN = "a golden curve on the processor that recorded it"
    MOVED = "values that are copied, selected or moved, not computed"
    EXACT = "sums of integers, constants, one sum or product an element, rounding to a type: IEEE 754 leaves no choice"


def same_bits(found: Any, expected: Any, reason: Reason) -> bool:
    """Whether two tensors, arrays or numbers, or nested mappings or sequences of them, have the same types, shapes and
    bits; NaN equals NaN, and -0 is not 0. A None in both, such as a gradient that is missing, is a TypeError."""
    _check(reason)
    return _difference(found, expected) is None


def assert_same_bits(found: Any, expected: Any, reason: Reason, what: str = "") -> None:
    """Fail, with the first difference, unless `same_bits`."""
    _check(reason)
    difference = _difference(found, expected)
    assert difference is None, f"{what or 'the results'} should have the same bits ({reason}): {difference}"


def differ(found: Any, other: Any) -> bool:
    """Whether two results differ in at least one bit: for what is meant to have an effect."""
    return _difference(found, other) is not None


def same_integers(found: Any, expected: Any) -> bool:
    """Whether two tensors or arrays of integers or truth values are equal. Floats are refused: see `same_bits`."""
    one, other = _array(found), _array(expected)
    for each in (one, other):
        if each.dtype.kind not in "iub":
            raise TypeError(f"{each.dtype} are no integers: compare them to rounding, or with same_bits and its reason")
    return bool(np.array_equal(one, other))


def _check(reason: Reason) -> None:
    if not isinstance(reason, Reason):
        raise TypeError(f"a reason is one of {', '.join(Reason.__members__)}; this is {reason!r}")


def _difference(found: Any, expected: Any) -> str | None:
    """The first difference, in words."""
    one, other = dict(_parts(found, "it")), dict(_parts(expected, "it"))
    if one.keys() != other.keys():
        return f"only one of them has {', '.join(sorted(one.keys() ^ other.keys()))}"
    return next(filter(None, (_unequal(place, one[place], other[place]) for place in one)), None)


def _parts(values: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The tensors, arrays and numbers of nested mappings and sequences, with the place of each."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _parts(value, f"{place}[{key!r}]")
    elif isinstance(values, Sequence) and not isinstance(values, str | bytes):
        for i, value in enumerate(values):
            yield from _parts(value, f"{place}[{i}]")
    else:
        yield place, values


def _unequal(place: str, found: Any, expected: Any) -> str | None:
    if found is None or expected is None:
        if found is expected:
            raise TypeError(f"{place} is None in both: nothing is compared")
        return f"{place} is {found}, not {expected}"
    one, other = _array(found), _array(expected)
    kinds = [
        (str(getattr(each, "dtype", array.dtype)).removeprefix("torch."), array.shape)
        for each, array in ((found, one), (expected, other))
    ]
    if kinds[0] != kinds[1]:
        return f"{place} is {kinds[0]}, not {kinds[1]}"
    unequal = np.asarray(one != other)
    if one.dtype.kind == "f":
        unequal = (unequal | (np.signbit(one) != np.signbit(other))) & ~(np.isnan(one) & np.isnan(other))
    if not unequal.any():
        return None
    at = tuple(np.argwhere(unequal)[0].tolist()) if one.ndim else ()
    return f"{place} differs in {unequal.sum()} of {one.size} entries, first at {at}: {one[at]}, not {other[at]}"


def _array(values: Any) -> np.ndarray:
    """As NumPy has it; bf16, which it does not know, as fp32."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype is torch.bfloat16 else values).numpy()
    return np.asarray(values)
