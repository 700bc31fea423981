"""Where a device's memory is full at any point of `steps_in_turns`, nothing of what was there stays alive."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable

import pytest
import torch

from comt_cli.lab.bench import rounds, step_turns
from comt_cli.lab.bench.failures import Failed
from comt_cli.lab.bench.shapes import LLAMAS, Shape
from comt_cli.lab.bench.step_turns import Timed, steps_in_turns
from comt_cli.lab.bench.subjects import LANGUAGE
from comt_cli.lab.bench.variants import Prepared, Variants

CPU = torch.device("cpu")
REQUIRED, OPTIONAL = "transponder-compiled", "transponder-eager"
ROUNDS = 2
CALLS = {"prepare": 1, "prepared": 1, "step": 3 + 1 + 2 * ROUNDS, "loss": 1, "forward": 2 + 1 + 2 * ROUNDS}
"""How often each is called of a variant: a step twice when it is built, once for its peak, to warm up and in as many
rounds as were asked for and as may settle the times; the loss when what it keeps is counted."""
POINTS = [(name, of, call) for name in (REQUIRED, OPTIONAL) for of, calls in CALLS.items() for call in range(calls)]


class Full(Variants):
    """Has no memory left at one call of one of its parts, `point`, on batches of `shape` and up."""

    point: tuple[str, str, int] | None = None
    called: dict[tuple[str, str], int]
    smallest = 2

    def _reached(self, variant: str, of: str) -> None:
        number = self.called.get((variant, of), 0)
        self.called[variant, of] = number + 1
        if (variant, of, number) == self.point and self.shape.batch >= self.smallest:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    def prepare(self, variant: str) -> Prepared:
        self._reached(variant, "prepare")
        prepared = super().prepare(variant)
        self._reached(variant, "prepared")

        def reaching(of: str, part: Callable):
            def call():
                result = part()  # what it made is alive at that moment
                self._reached(variant, of)
                return result

            return call

        parts = {of: reaching(of, getattr(prepared, of)) for of in ("step", "forward", "loss")}
        return Prepared(**parts, parameters=prepared.parameters)


@pytest.fixture(autouse=True)
def _settling(monkeypatch):
    """Times never settle, and the peak is looked for as on a GPU. Of what is made once in a process and kept, such as
    libraries and tables of positions, the collector knows nothing, and so is quick."""
    monkeypatch.setattr(rounds, "PATIENCE", 1)
    monkeypatch.setattr(step_turns, "peak_beyond", lambda part, device: part() and None)
    warm_up()
    gc.collect()
    gc.freeze()  # for good, as conftest.py does: later collections need not go through it either


def alive() -> int:
    """Tensors, parameters among them."""
    gc.collect()
    return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())


def measured(point: tuple[str, str, int] | None, smallest: int = 2) -> tuple[list[str | Timed], list[int], Full]:
    """What is yielded where memory is full there, how many tensors were alive before each shape was built, and at the
    end, and what was built last."""
    counts, made = [], {}

    def make(shape: Shape) -> Variants:
        made.clear()
        counts.append(alive())
        builder = Full(LANGUAGE, shape, "fp32", CPU, "whole")
        builder.point, builder.called, builder.smallest = point, made, smallest
        return builder

    news = list(steps_in_turns(LLAMAS["bench"], "fp32", [REQUIRED, OPTIONAL], make, CPU, ROUNDS, lambda: True))
    counts.append(alive())
    return news, counts, made


@functools.cache
def warm_up() -> None:
    measured(None)


def test_these_are_all_points():
    """And without an error nothing stays alive either."""
    news, counts, made = measured(None)
    assert isinstance(news[-1], Timed)
    assert counts[0] == counts[1]
    assert made == {(name, of): calls for name in (REQUIRED, OPTIONAL) for of, calls in CALLS.items()}


@pytest.mark.parametrize("point", POINTS, ids=lambda point: " ".join(map(str, point)))
def test_nothing_stays_alive(point):
    news, counts, _ = measured(point)
    is_left_out = point[0] == OPTIONAL and f"bench fp32 {OPTIONAL}: left out, does not fit with 16 tokens" in news
    assert len(counts) == (2 if is_left_out else 3), "the batch was halved"
    assert len({*counts}) == 1
    assert isinstance(news[-1], Timed)
    assert not any(isinstance(each, Failed) for each in news)


def test_nothing_stays_alive_where_nothing_fits():
    news, counts, _ = measured((REQUIRED, "step", 5), smallest=1)
    assert "failed (not even one sample fits)" in news[-1]
    assert len(counts) == 3
    assert len({*counts}) == 1
