"""Training steps of many variants, timed in turns, and what they keep in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

import torch

from comt_cli.benchmarks.failures import Failed, failed
from comt_cli.benchmarks.memory import free, peak_beyond, saved_bytes
from comt_cli.benchmarks.rounds import Times, in_turns, stopwatch_for
from comt_cli.benchmarks.shapes import Shape
from comt_cli.benchmarks.variants import Prepared, Unavailable, Variants
from comt_cli.training.devices import prepare_process


@dataclass(frozen=True)
class Memory:
    """Bytes that one variant takes; None where they cannot be counted."""

    saved: int
    peak: int | None


@dataclass(frozen=True)
class Timed:
    """The variants that could be had, in the order in which they were asked for, on the batch that fitted."""

    shape: Shape
    rounds: int
    variants: list[str]
    memory: dict[str, Memory]
    step: dict[str, Times]
    forward: dict[str, Times]


def steps_in_turns(
    shape: Shape,
    precision: str,
    variants: Sequence[str],
    optional: Container[str],
    make: Callable[[Shape], Variants],
    device: torch.device,
    rounds: int,
) -> Iterator[str | Timed]:
    """Build `variants` with what `make` gives for a shape, and time them on `device`; yields lines that say what is
    going on, and last what was timed.

    Where a batch does not fit in the device's memory it is halved for all; the variants in `optional` are left out
    instead. A variant that fails is reported (`Failed`), and the others are timed.
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
    optional: Container[str],
    builder: Variants,
    device: torch.device,
    rounds: int,
) -> Iterator[str | Timed]:
    ready: dict[str, Prepared] = {}
    memory: dict[str, Memory] = {}
    # Those that must fit come first: whether the batch is too large shows before time is spent on the others.
    for name in sorted(variants, key=lambda name: name in optional):
        begin = time.perf_counter()
        prepared: Prepared | None = None
        problem: str | None = None
        try:
            prepared = builder.prepare(name)
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
