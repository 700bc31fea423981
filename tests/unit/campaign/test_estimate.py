"""Estimates of time: before runs begin, from finished ones that are alike; then from the steps that were seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_runs import image_spec, tiny_spec, write_corpus

from comt_cli.campaign import estimate as module
from comt_cli.campaign.estimate import START_SECONDS, Estimator, TimeLeft, finished_runs
from comt_cli.models.accounting import cost_of, total_flops
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.base import Unit
from comt_cli.training import devices
from comt_cli.training.events import RunStarted, StepReport
from comt_cli.training.hardware import Hardware

CPU = Hardware("cpu", "A processor", 1)


@pytest.fixture(autouse=True)
def own_cache_and_eight_cores(tmp_path, monkeypatch):
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "usable_cores", lambda: 8)


@pytest.fixture
def corpus(tmp_path) -> str:
    return write_corpus(tmp_path / "texts")


def finish(spec: RunSpec, runs: Path, speed: float, *, device: str = "A processor, 1 thread", **result) -> None:
    """A finished run that reached `speed` FLOP/s, and evaluated 10 rows."""
    directory = RunDirectory.of(runs, spec)
    directory.create(spec)
    flops = total_flops(spec)
    said = {
        "state": "done",
        "flops": flops,
        "steps": spec.settings.train.steps,
        "train_seconds": flops / speed,
        "device": device,
        "processes": 1,
        "evaluation": {"samples": 10, "processes": 1},
    }
    directory.result_file.write_text(json.dumps(said | result))


def estimator(runs: Path, at_once: int, threads: int | None, where: Hardware = CPU, processes: int = 1) -> Estimator:
    return Estimator(finished_runs(runs, where, processes), where, at_once, threads, processes)


def test_a_run_takes_what_its_like_took(corpus, tmp_path):
    spec = tiny_spec(corpus, steps=100)
    finish(tiny_spec(corpus, steps=50, warmup_steps=2), tmp_path, 1e9)
    estimate = estimator(tmp_path, 2, 1).of(spec)
    evaluation = 10 * cost_of(spec).flops_per_row / 3
    assert estimate.value == pytest.approx((total_flops(spec) + evaluation) / 1e9)
    assert estimate.source == "runs finished on this device (A processor, 1 thread)"
    often = tiny_spec(corpus, steps=100, evaluate_every=25)
    assert estimator(tmp_path, 2, 1).of(often).value == pytest.approx((total_flops(often) + 4 * evaluation) / 1e9)


def test_the_most_similar_run_counts_and_quite_another_size_tells_nothing(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "measured_matmul_flops", lambda *_: 5e12 / 0.4)
    wanted = tiny_spec(corpus, method="comt")
    others = {
        "five times the work": (tiny_spec(corpus, model={"width": 256}), 5000),
        "another width": (tiny_spec(corpus, model={"width": 64}), 2),
        "another batch": (tiny_spec(corpus, method="comt", batch_size=4), 3),
        "the same": (tiny_spec(corpus, method="comt", seed=7), 4),
    }
    for number, (spec, told) in enumerate(others.values(), 1):
        finish(spec, tmp_path, number * 1e9)
        reached = total_flops(wanted) / 1e9 / estimator(tmp_path, 1, 1).of(wanted).value
        assert reached == pytest.approx(told, rel=0.05), "each is more similar than those before"


def test_runs_of_another_size_tell_a_range_and_one_run_of_the_same_none(corpus, tmp_path):
    finish(tiny_spec(corpus, model={"width": 64}), tmp_path, 1e9)
    far = estimator(tmp_path, 1, 1).of(tiny_spec(corpus))
    assert (far.least, far.most) == pytest.approx((far.value / 1.5, far.value / 0.5))
    finish(tiny_spec(corpus, seed=7), tmp_path, 1e9)
    near = estimator(tmp_path, 1, 1).of(tiny_spec(corpus))
    assert near.least == near.value == near.most
    finish(tiny_spec(corpus, seed=8), tmp_path, 2e9)
    two = estimator(tmp_path, 1, 1).of(tiny_spec(corpus))
    assert two.most == pytest.approx(2 * two.least)


@pytest.mark.parametrize(
    ("key", "odd"),
    [
        ("device", "Another processor, 1 thread"),
        ("processes", 2),
        ("state", "diverged"),
        ("train_seconds", 0),
        ("flops", 10**320),
        ("evaluation", None),
    ],
)
def test_runs_that_say_nothing_are_passed_over(corpus, tmp_path, monkeypatch, key, odd):
    monkeypatch.setattr(devices, "measured_matmul_flops", lambda *_: 5e9 / 0.4)
    finish(tiny_spec(corpus), tmp_path, 1e9, **{key: odd})
    finish(image_spec(), tmp_path, 1e9)
    for name, text in (("cut", "{"), ("deep", "[" * 100_000)):
        (tmp_path / "by-id" / name).mkdir()
        (tmp_path / "by-id" / name / "result.json").write_text(text)
    estimate = estimator(tmp_path, 1, 1).of(tiny_spec(corpus))
    assert estimate.value == pytest.approx(total_flops(tiny_spec(corpus)) / 5e9)
    assert estimate.source == "the speed of matrix products here (a rough estimate)"


def test_runs_at_once_share_the_cores(corpus, tmp_path, monkeypatch):
    """Eight runs of 40 s on two cores are not done in 50 s, as they are on eight. A training of two tables counts once,
    and what is done not at all."""
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    specs = [tiny_spec(corpus, seed=seed) for seed in range(1, 9)]
    finish(tiny_spec(corpus, seed=9), tmp_path, 1e6)
    seconds = estimator(tmp_path, 1, 1).of(specs[0]).value
    eight = estimator(tmp_path, 8, 1)
    assert eight.of(specs[0]).value == pytest.approx(4 * seconds)
    assert eight.makespan([*specs, specs[0]]) == pytest.approx(START_SECONDS + 4 * seconds)
    assert eight.makespan(specs[:3:2]) == pytest.approx(START_SECONDS + seconds)
    assert eight.makespan([]) == 0
    assert estimator(tmp_path, 2, 2).of(specs[0]).value == pytest.approx(2 * seconds)
    assert estimator(tmp_path, 1, 64).of(specs[0]).value == pytest.approx(seconds), "nobody to share with"


def test_gpus_are_shared_by_runs_and_processes_have_one_each(corpus, tmp_path, monkeypatch):
    two = Hardware("cuda", "NVIDIA H200", 2)
    finish(tiny_spec(corpus, seed=9), tmp_path, 1e6, device="NVIDIA H200")
    seconds = estimator(tmp_path, 2, None, two).of(tiny_spec(corpus)).value
    assert estimator(tmp_path, 6, None, two).of(tiny_spec(corpus)).value == pytest.approx(3 * seconds)
    monkeypatch.setattr(devices, "measured_matmul_flops", lambda *_: 5e9 / 0.4)
    seconds = total_flops(tiny_spec(corpus)) / 5e9
    for where, count in ((CPU, 1), (two, 2)):
        assert estimator(tmp_path, 1, None, where, 2).of(tiny_spec(corpus)).value == pytest.approx(seconds / count)


class Clock:
    """A clock that is moved by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def specs(corpus: str, number: int, **more):
    return [tiny_spec(corpus, seed=seed, **{"steps": 100} | more) for seed in range(1, number + 1)]


def train(left: TimeLeft, clock: Clock, steps: int, pace: float, first: int = 0) -> None:
    """Steps of worker 0, each reported."""
    left.receive(0, RunStarted(first))
    for step in range(first + 1, first + steps + 1):
        clock.now += pace
        left.receive(0, StepReport(step, 1.0, 1.0, None, None, Unit("tokens", "tok")))


@pytest.mark.parametrize("first", [0, 60])
def test_a_runs_own_pace(tiny_corpus, clock, first):
    """Whether it is resumed or not; the first step, in which kernels may have been compiled, does not count."""
    (spec,) = specs(tiny_corpus, 1)
    left = TimeLeft([spec], clock)
    left.take(0, spec)
    assert left.of_run(left.running[0]) is left.of_all(2) is None  # before steps were seen
    clock.now += 500
    train(left, clock, 20, 0.5, first)
    clock.now += 3  # seconds go by between two reports
    assert left.of_all(1) == left.of_run(left.running[0]) == pytest.approx((80 - first) * 0.5 - 3)


def test_the_most_similar_run_tells_the_pace(tiny_corpus, clock):
    """The same method; else all methods; a larger model by its work."""
    plain, gated = (specs(tiny_corpus, 2, method=method) for method in ("pre-ln", "comt"))
    large = tiny_spec(tiny_corpus, steps=100, model={"width": 64}, method="pre-ln")
    left = TimeLeft([plain[0], plain[1], gated[0], large], clock)
    left.take(0, plain[0])
    train(left, clock, 10, 2.0)
    assert left.of_all(1) == pytest.approx(90 * 2 + 200 + 200 + 4 * 200)
