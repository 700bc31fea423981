"""Training steps of many variants, timed in turns, and what they keep in memory: the same for every kind of model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor

from comt_cli.benchmarks.failures import Failed, failed
from comt_cli.benchmarks.memory import free, mebibytes, peak_beyond, saved_bytes
from comt_cli.benchmarks.rounds import Part, Times, in_turns, quickest, ratio, stopwatch_for
from comt_cli.training.devices import prepare_process

CompileWhat = Literal["whole", "block"]
"""The model (a language model's below its head) as one graph, or one block at a time, whose code equal blocks share:
quicker to compile."""


class Unavailable(Exception):
    """A variant that there is not on this machine; says why."""


@dataclass(frozen=True)
class Prepared:
    """One variant, ready to be timed."""

    step: Part
    forward: Part
    loss: Callable[[], Tensor]
    parameters: list[Tensor]
    notes: list[str] = field(default_factory=list)


class Trained(Protocol):
    """What is trained: a model of some size on batches of some size."""

    @property
    def size(self) -> str:
        """Its name."""

    @property
    def batch(self) -> int:
        """Rows or images in a step."""

    @property
    def amount(self) -> str:
        """What a step takes in, in words: `2,048 tokens`."""

    def halved(self) -> Self:
        """The same with half the batch."""


class Workshop(Protocol):
    """Builds the variants of one shape in one precision on one device."""

    def prepare(self, variant: str) -> Prepared:
        """A variant with its step and its forward pass.

        Raises:
            Unavailable: this machine has none of its parts, or not the library.
        """


@dataclass(frozen=True)
class Memory:
    """Bytes that one variant takes; None where they cannot be counted."""

    saved: int
    peak: int | None


Shape = TypeVar("Shape", bound=Trained)


@dataclass(frozen=True)
class Timed(Generic[Shape]):
    """The variants that could be had, in the order in which they were asked for, on the batch that fitted."""

    shape: Shape
    rounds: int
    variants: list[str]
    memory: dict[str, Memory]
    step: dict[str, Times]
    forward: dict[str, Times]

    def numbers(self, name: str, plain: Sequence[str]) -> dict[str, Any]:
        """What is measured of every variant, by the columns of a row: times in milliseconds (median, 10th and 90th
        percentile), their ratios to the quickest of `plain`, and memory beside the least that any of those keeps."""
        best, best_forward = quickest(self.step, list(plain)), quickest(self.forward, list(plain))
        median, low, high = self.step[name].milliseconds(3)
        plain_saved = min((self.memory[each].saved for each in plain if each in self.memory), default=None)
        return {
            "rounds": self.rounds,
            "step_ms": median,
            "step_ms_p10": low,
            "step_ms_p90": high,
            "best_plain": best,
            "step_ratio_to_best_plain": ratio(self.step, name, best),
            "best_plain_forward": best_forward,
            "forward_ms": self.forward[name].milliseconds(3)[0],
            "forward_ratio_to_best_plain": ratio(self.forward, name, best_forward),
            "saved_mib": mebibytes(self.memory[name].saved),
            "saved_ratio_to_plain": round(self.memory[name].saved / plain_saved, 4) if plain_saved else None,
            "peak_mib": mebibytes(self.memory[name].peak),
        }


def steps_in_turns(
    shape: Shape,
    precision: str,
    variants: Sequence[str],
    optional: Sequence[str],
    make: Callable[[Shape], Workshop],
    device: torch.device,
    rounds: int,
) -> Iterator[str | Timed[Shape]]:
    """Build `variants` in the workshop that `make` gives, and time them on `device`; yields lines that say what is
    going on, and last what was timed.

    Where a batch does not fit in the device's memory it is halved for all; the variants in `optional` are left out
    instead. A variant that fails is told (`Failed`), and the others go on.
    """
    prepare_process(device)
    while True:
        torch._dynamo.reset()
        free(device)
        try:
            yield from _timed(shape, precision, variants, optional, make(shape), device, rounds)
        except torch.cuda.OutOfMemoryError:
            if shape.batch < 2:
                yield Failed(f"{shape.size} {precision}: failed (not even one row fits)")
                break
            shape = shape.halved()
        except Exception as error:
            yield failed(f"{shape.size} {precision}", error)
            break
        else:
            break
        yield f"too large: once more with {shape.amount} a step"
    torch._dynamo.reset()
    free(device)


def _timed(
    shape: Shape,
    precision: str,
    variants: Sequence[str],
    optional: Sequence[str],
    workshop: Workshop,
    device: torch.device,
    rounds: int,
) -> Iterator[str | Timed[Shape]]:
    ready: dict[str, Prepared] = {}
    memory: dict[str, Memory] = {}
    # Those that must fit come first: whether the batch is too large shows before time is spent on the others.
    for name in sorted(variants, key=lambda name: name in optional):
        begin = time.perf_counter()
        prepared: Prepared | None = None
        problem: str | None = None
        try:
            prepared = workshop.prepare(name)
            for part in (prepared.step, prepared.step, prepared.forward, prepared.forward):
                part()
            memory[name] = Memory(saved_bytes(prepared.loss, prepared.parameters), peak_beyond(prepared.step, device))
        except Unavailable as reason:
            problem = f"{shape.size} {precision} {name}: left out, {reason}"
        except torch.cuda.OutOfMemoryError:
            if name not in optional:
                raise
            problem = f"{shape.size} {precision} {name}: left out, does not fit with {shape.amount}"
        except Exception as error:
            problem = failed(f"{shape.size} {precision} {name}", error)
        if problem is not None:
            for parameter in prepared.parameters if prepared is not None else ():
                parameter.grad = None
            prepared = None  # and the error's trace with it, so that what they hold can be freed
            yield problem
            free(device)
            continue
        assert prepared is not None
        ready[name] = prepared
        notes = f" (not fused: {'; '.join(prepared.notes)})" if prepared.notes else ""
        yield f"{shape.size} {precision} {name}: ready after {time.perf_counter() - begin:.1f} s{notes}"
    if not ready:
        return
    parts = {("step", name): each.step for name, each in ready.items()}
    parts |= {("forward", name): each.forward for name, each in ready.items()}
    times: dict[tuple[str, str], Times] = {}
    for news in in_turns(parts, rounds, stopwatch_for(device)):
        if isinstance(news, dict):
            times = news
        else:
            yield f"{shape.size} {precision} round {news} of {rounds}"
    step, forward = ({name: times[kind, name] for name in ready} for kind in ("step", "forward"))
    yield Timed(shape, rounds, [name for name in variants if name in ready], memory, step, forward)
