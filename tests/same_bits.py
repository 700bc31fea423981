"""The one place where the suite compares bits of floats, and why it may.

Two computations have the same bits on every processor only if they are the same computation in the same shape. Other
comparisons of floats are to rounding. `tests/contract/test_comparisons.py` allows no other way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import torch


class Reason(StrEnum):
    """Why two results have the same bits on every processor."""

    SAME_CALL = "the same call in the same shape, twice"
    RESUMED = "a run that was stopped and resumed, and one that was not"
    SAVED = "what was saved, and what is loaded"
    RECOMPUTED = "activations that are computed again in the backward pass"
    CAUSAL = "the same call with other inputs at later positions, or in other rows, of which this result is independent"
    IDENTITY = "a factor of exactly one, or an addition of exactly zero, at the start"
    GOLDEN = "a golden curve on the processor that recorded it"
    MOVED = "values that are copied, selected or moved, not computed"
    EXACT = "sums of integers, constants, and rounding to a type: IEEE 754 leaves no choice"


def same_bits(found: Any, expected: Any, reason: Reason) -> bool:
    """Whether two tensors, arrays or numbers, or nested mappings or sequences of them, have the same types, shapes and
    bits; NaN equals NaN, and -0 is not 0."""
    if not isinstance(reason, Reason):
        raise TypeError(f"a reason is one of {', '.join(Reason.__members__)}; this is {reason!r}")
    return _difference(found, expected, "") is None


def assert_same_bits(found: Any, expected: Any, reason: Reason, what: str = "") -> None:
    """Fail, with the first difference, unless `same_bits`."""
    if not isinstance(reason, Reason):
        raise TypeError(f"a reason is one of {', '.join(Reason.__members__)}; this is {reason!r}")
    difference = _difference(found, expected, "")
    assert difference is None, f"{what or 'the results'} should have the same bits ({reason}): {difference}"


def differ(found: Any, other: Any) -> bool:
    """Whether two results differ in at least one bit: for what is meant to have an effect."""
    return _difference(found, other, "") is not None


def same_integers(found: Any, expected: Any) -> bool:
    """Whether two tensors or arrays of integers or truth values are equal. Floats are refused: see `same_bits`."""
    one, other = _array(found), _array(expected)
    for each in (one, other):
        if each.dtype.kind not in "iubUSO":
            raise TypeError(f"{each.dtype} are no integers: compare them to rounding, or with same_bits and its reason")
    return bool(np.array_equal(one, other))


def _difference(found: Any, expected: Any, place: str) -> str | None:
    if isinstance(expected, Mapping):
        if set(found) != set(expected):
            return f"{place or 'it'} has other keys: {sorted(set(found) ^ set(expected))}"
        return _first(_difference(found[key], expected[key], f"{place}[{key!r}]") for key in expected)
    if isinstance(expected, Sequence) and not isinstance(expected, str | bytes):
        if len(found) != len(expected):
            return f"{place or 'it'} has {len(found)} parts, not {len(expected)}"
        pairs = enumerate(zip(found, expected, strict=True))
        return _first(_difference(one, other, f"{place}[{i}]") for i, (one, other) in pairs)
    if found is None or expected is None:
        return None if found is expected else f"{place or 'it'} is {found}, not {expected}"
    if isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor) and found.dtype is not expected.dtype:
        return f"{place or 'it'} is {found.dtype}, not {expected.dtype}"
    one, other = _array(found), _array(expected)
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{place or 'it'} is {one.dtype} {one.shape}, not {other.dtype} {other.shape}"
    unequal = one != other
    if one.dtype.kind == "f":
        unequal = (unequal & ~(np.isnan(one) & np.isnan(other))) | (np.signbit(one) != np.signbit(other))
    if not unequal.any():
        return None
    at = tuple(int(i) for i in np.argwhere(unequal)[0]) if one.ndim else ()
    return f"{place or 'it'} differs in {int(unequal.sum())} of {one.size} entries, first at {at}: {one[at]}, not {other[at]}"


def _first(differences: Any) -> str | None:
    return next((each for each in differences if each is not None), None)


def _array(values: Any) -> np.ndarray:
    """As NumPy has it; bf16, which it does not know, as fp32."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype is torch.bfloat16 else values).numpy()
    return np.asarray(values)
