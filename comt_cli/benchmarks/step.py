"""How long one training step takes, each variant as a ratio to the best plain one measured in the same run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from comt_cli.benchmarks.failures import Failed, failed
from comt_cli.benchmarks.memory import free, mebibytes, peak_beyond, saved_bytes
from comt_cli.benchmarks.origin import origin_on
from comt_cli.benchmarks.roofline import predicted_step_ratio
from comt_cli.benchmarks.rounds import Times, in_turns, quickest, ratio, stopwatch_for
from comt_cli.benchmarks.shapes import Shape, goal_device, goals_of
from comt_cli.benchmarks.step_variants import (
    BEST_PLAIN,
    OPTIONAL,
    PEER,
    CompileWhat,
    Prepared,
    Unavailable,
    Workshop,
)
from comt_cli.models.build import empty_model, wiring_of
from comt_cli.models.flops import flops_of_row
from comt_cli.recipe.settings import Precision
from comt_cli.training.devices import device_name, peak_flops, prepare_process


@dataclass(frozen=True)
class Measurement:
    """One variant. Times in milliseconds (median, and the 10th and 90th percentile); ratios are medians over rounds of
    the ratio within a round. `forward` has no gradients and includes the loss. `saved` is what a forward pass keeps for
    the backward pass, `peak` the most that a step takes beyond weights and moments (CUDA only). Goals are at most,
    that of `mfu` at least."""

    device: str
    shape: str
    size: str
    precision: str
    variant: str
    rounds: int
    step_ms: float
    step_ms_p10: float
    step_ms_p90: float
    tokens_per_second: float
    mfu: float | None
    best_plain: str | None
    step_ratio_to_best_plain: float | None
    step_ratio_to_transformers: float | None
    best_plain_forward: str | None
    forward_ms: float
    forward_ratio_to_best_plain: float | None
    saved_mib: float | None
    saved_ratio_to_plain: float | None
    peak_mib: float | None
    predicted_step_ratio: float | None
    goal_step_ratio: float | None
    goal_forward_ratio: float | None
    goal_saved_ratio: float | None
    goal_mfu: float | None
    compiled: str
    torch: str
    triton: str | None
    git_commit: str | None


@dataclass(frozen=True)
class Memory:
    """Bytes that one variant takes; None where they cannot be counted."""

    saved: int
    peak: int | None


def run_step_benchmark(
    shape: Shape,
    precision: Precision,
    variants: Sequence[str],
    device: torch.device,
    rounds: int,
    compile_what: CompileWhat = "whole",
) -> Iterator[str | list[Measurement]]:
    """Measure `variants` on `device`; yields lines that say what is going on, and last the measurements.

    Where a batch does not fit in the device's memory it is halved for all; uncompiled variants and transformers' are
    left out instead. A variant that fails is told (`Failed`), and the others go on.
    """
    prepare_process(device)
    while True:
        torch._dynamo.reset()
        free(device)
        try:
            yield from _measure(shape, precision, variants, device, rounds, compile_what)
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
        yield f"too large: once more with {shape.tokens:,} tokens a step"
    torch._dynamo.reset()
    free(device)


def _measure(
    shape: Shape,
    precision: Precision,
    variants: Sequence[str],
    device: torch.device,
    rounds: int,
    compile_what: CompileWhat,
) -> Iterator[str | list[Measurement]]:
    workshop = Workshop(shape, precision, device, compile_what)
    ready: dict[str, Prepared] = {}
    memory: dict[str, Memory] = {}
    # Those that must fit come first: whether the batch is too large shows before time is spent on the others.
    for name in sorted(variants, key=lambda name: name in OPTIONAL):
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
            if name not in OPTIONAL:
                raise
            problem = f"{shape.size} {precision} {name}: left out, does not fit with {shape.tokens:,} tokens"
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
    yield _measurements(
        shape, precision, device, compile_what, rounds, memory, times, [v for v in variants if v in ready]
    )


def _measurements(
    shape: Shape,
    precision: Precision,
    device: torch.device,
    compile_what: str,
    rounds: int,
    memory: dict[str, Memory],
    times: dict[tuple[str, str], Times],
    variants: list[str],
) -> list[Measurement]:
    step, forward = (
        {name: each for (kind, name), each in times.items() if kind == wanted} for wanted in ("step", "forward")
    )
    best, best_forward = quickest(step, BEST_PLAIN), quickest(forward, BEST_PLAIN)
    origin = origin_on(device)
    rows = []
    for name in variants:
        median, low, high = step[name].milliseconds(3)
        goals = goals_of(name, shape.size, goal_device(device.type, origin.device), precision)
        # The plain step that would be run: the least that any quick plain variant keeps.
        plain_saved = min((memory[each].saved for each in BEST_PLAIN if each in memory), default=None)
        saved_ratio = round(memory[name].saved / plain_saved, 4) if plain_saved else None
        rows.append(
            Measurement(
                device=device_name(device),
                shape=str(shape),
                size=shape.size,
                precision=precision,
                variant=name,
                rounds=rounds,
                step_ms=median,
                step_ms_p10=low,
                step_ms_p90=high,
                tokens_per_second=round(shape.tokens / step[name].median, 1),
                mfu=_mfu(name, shape, precision, device, step[name].median),
                best_plain=best,
                step_ratio_to_best_plain=ratio(step, name, best),
                step_ratio_to_transformers=ratio(step, name, PEER),
                best_plain_forward=best_forward,
                forward_ms=forward[name].milliseconds(3)[0],
                forward_ratio_to_best_plain=ratio(forward, name, best_forward),
                saved_mib=mebibytes(memory[name].saved),
                saved_ratio_to_plain=saved_ratio,
                peak_mib=mebibytes(memory[name].peak),
                predicted_step_ratio=predicted_step_ratio(device_name(device), shape.size, precision, name),
                goal_step_ratio=goals.step,
                goal_forward_ratio=goals.forward,
                goal_saved_ratio=goals.saved,
                goal_mfu=goals.mfu,
                compiled=compile_what if name.endswith(("-compiled", "-fused")) else "no",
                torch=origin.torch,
                triton=origin.triton,
                git_commit=origin.git_commit,
            )
        )
    return rows


def _mfu(variant: str, shape: Shape, precision: Precision, device: torch.device, seconds: float) -> float | None:
    """Model FLOPs a second over the device's peak, as training counts them: matrix products, attention in full."""
    peak = peak_flops(device, precision)
    if peak is None:
        return None
    method = {"comt": "comt", "transponder": "transponder"}.get(variant.partition("-")[0], "pre-ln")
    model = empty_model(shape.model(), shape.vocabulary, wiring_of({"name": method}))
    return round(flops_of_row(model, shape.length) * shape.batch / seconds / peak, 4)
