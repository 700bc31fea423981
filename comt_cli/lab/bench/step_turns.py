"""Training steps of many variants, timed in turns, and what they keep in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from comt_cli.kernels.choice import use_tiles
from comt_cli.lab.bench.failures import Failed, failed
from comt_cli.lab.bench.memory import free, peak_beyond, saved_bytes
from comt_cli.lab.bench.rounds import GoOn, Part, Times, in_turns, stopwatch_for, unsettled
from comt_cli.lab.bench.shapes import Shape
from comt_cli.lab.bench.subjects import GRAPHS
from comt_cli.lab.bench.variants import Prepared, Unavailable, Variants
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
    variants: list[str]
    memory: dict[str, Memory]
    step: dict[str, Times]
    forward: dict[str, Times]


def steps_in_turns(
    shape: Shape,
    precision: str,
    variants: Sequence[str],
    make: Callable[[Shape], Variants],
    device: torch.device,
    rounds: int,
    go_on: GoOn,
) -> Iterator[str | Timed]:
    """Build `variants` with what `make` gives for a shape, and time them on `device` in so many rounds, or more
    (`rounds.in_turns`); yields lines of progress, and last what was timed. `go_on` is asked before each variant and
    each turn: where it says no, what is built is timed in one whole round, if there was none.

    Where a batch does not fit in the device's memory it is halved for all; the subject's optional variants are left out
    instead. A variant that fails is reported (`Failed`), and the others are timed.
    """
    what = f"{shape.size} {precision}"
    prepare_process(device)
    while True:
        torch._dynamo.reset()
        use_tiles((), only=True)  # of another batch or type
        free(device)
        try:
            yield from _timed(make(shape), variants, rounds, go_on)
        except torch.cuda.OutOfMemoryError:
            if shape.batch < 2:
                yield Failed(f"{what}: failed (not even one sample fits)")
                break
            shape = shape.halved()
        except Exception as error:
            yield failed(what, error)
            break
        else:
            break
        yield f"too large: once more with {shape.amount} a step"
    torch._dynamo.reset()
    free(device)


def _timed(builder: Variants, variants: Sequence[str], rounds: int, go_on: GoOn) -> Iterator[str | Timed]:
    shape, device, optional = builder.shape, builder.device, builder.subject.optional
    what = f"{shape.size} {builder.precision}"
    ready: dict[str, Prepared] = {}
    memory: dict[str, Memory] = {}
    # Those that must fit come first: whether the batch is too large shows before time is spent on the others.
    for name in sorted(variants, key=lambda name: name in optional):
        if not go_on():
            yield f"{what} {name}: left out for want of time"
            continue
        begin = time.perf_counter()
        prepared: Prepared | None = None
        problem: str | None = None
        try:
            prepared = builder.prepare(name)
            for part in (prepared.step, prepared.step, prepared.forward, prepared.forward):
                part()
            saved = saved_bytes(prepared.loss, prepared.parameters)
            memory[name] = Memory(saved, None if name.endswith(GRAPHS) else peak_beyond(prepared.step, device))
        except Unavailable as reason:
            problem = f"{what} {name}: left out, {reason}"
        except torch.cuda.OutOfMemoryError:
            if name not in optional:
                raise
            problem = f"{what} {name}: left out, does not fit with {shape.amount}"
        except Exception as error:
            problem = failed(f"{what} {name}", error)
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
        yield f"{what} {name}: ready after {time.perf_counter() - begin:.1f} s{notes}"
    if not ready:
        return
    parts = {("step", name): each.step for name, each in ready.items()}
    parts |= {("forward", name): each.forward for name, each in ready.items()}
    times = yield from _turns(what, parts, rounds, device, go_on)
    step, forward = ({name: times[kind, name] for name in ready} for kind in ("step", "forward"))
    yield Timed(shape, [name for name in variants if name in ready], memory, step, forward)


def _turns(
    what: str,
    parts: Mapping[tuple[str, str], Part],
    rounds: int,
    device: torch.device,
    go_on: GoOn,
) -> Generator[str, None, dict[tuple[str, str], Times]]:
    """`in_turns`, told line by line; returns the times."""
    times: dict[tuple[str, str], Times] = {}
    for news in in_turns(parts, rounds, stopwatch_for(device), go_on=go_on):
        if isinstance(news, dict):
            times = news
        else:
            yield f"{what} round {news}{f' of {rounds}' if news <= rounds else ', to settle the times'}"
    if (still := unsettled(times)) is not None:
        yield f"{what}: {still}"
    return times
