"""`comt bench kernels --tune`, with times made up: the tiles that are chosen, what goes on where, and in which time."""

from __future__ import annotations

import math
import multiprocessing
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace

import pytest
import torch

from comt_cli.kernels import choice, measurements
from comt_cli.kernels.triton import tiles
from comt_cli.kernels.triton.tiles import Tile
from comt_cli.lab.bench import kernels, runner, tuning
from comt_cli.lab.bench.kernels import KernelCase
from comt_cli.lab.bench.record import Record
from comt_cli.lab.bench.runner import Deadline, Turns
from comt_cli.lab.bench.tables import GATES, LANGUAGE
from comt_cli.lab.bench.tuning import compile_all, run_tuning, to_tune
from comt_cli.tasks.settings.llama import ModelSettings

pytestmark = pytest.mark.usefixtures("quick_figures")

CPU = torch.device("cpu")
SMALL, LARGE, TOO_LARGE = Tile(16, 64, 1), Tile(32, 64, 2, 8, 255), Tile(64, 64, 4)
MILLISECONDS = {SMALL: 2.0, LARGE: 1.0}
KERNELS = [(f"swiglu{end}", kind) for end in ("", "_backward") for kind in ("none", "scalar", "channel")]
OPERATION = kernels.operation
ROUNDS = 14
"""The fewest that decide anything."""


class Card:
    """In the place of a GPU whose kernels of SwiGLU have three tiles; a step takes as long as those in use say."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tried: list[Tile] = []

    @staticmethod
    def in_use() -> list[Tile]:
        tuned = {key[:2]: tile for key, tile in tiles._tuned.items()}
        return [tuned.get(kernel, SMALL) for kernel in KERNELS]

    def operation(self, *given):
        built = OPERATION(*given)
        reference = built.forms["reference"]

        def fused():
            self.tried += self.in_use()
            if TOO_LARGE in self.in_use():
                raise RuntimeError("out of resources: shared memory")
            return reference()

        return replace(built, forms={"reference": reference, "fused": fused})

    def __call__(self, part) -> float:
        part()
        taken = sum(MILLISECONDS[tile] for tile in self.in_use()) / 1e3
        self.now += taken
        return taken

    def deadline(self, seconds: float = math.inf) -> Deadline:
        return Deadline(seconds, clock=lambda: self.now)


@pytest.fixture(autouse=True)
def card(monkeypatch, tmp_path):
    found = Card()
    monkeypatch.setattr(tiles, "TILES", dict.fromkeys(KERNELS, (SMALL, LARGE, TOO_LARGE)))
    monkeypatch.setattr(tiles, "_tuned", {})
    monkeypatch.setattr(choice, "_tuned", {})
    monkeypatch.setattr(kernels, "operation", found.operation)
    monkeypatch.setattr(kernels, "computed_by_triton", lambda _: True)
    for module in (runner, tuning):
        monkeypatch.setattr(module, "stopwatch_for", lambda *_, **__: found)
    monkeypatch.setattr(tuning, "compile_all", lambda *_: iter(()))
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: None)
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measurements, "roots", lambda: [measurements.own_folder()])
    return found


def todo(*dtypes: str) -> list[KernelCase]:
    return to_tune([LANGUAGE.shapes["bench"]], ["swiglu", "projection"], [*GATES], dtypes or ["fp32", "bf16"], CPU)


def tune(card: Card, tmp_path, seconds: float = math.inf) -> Record:
    record = Record(tmp_path)
    record.add(run_tuning(todo(), CPU, Turns(ROUNDS, card.deadline(seconds))))
    return record


def test_each_kernel_takes_the_tiles_that_were_the_fastest(card, tmp_path, capsys):
    """Forward and backward, with each kind of gates; those that the card has no room for are left out with a word."""
    record = tune(card, tmp_path)
    assert not record.outcome.failed
    assert (
        "swiglu gate-up none fused: swiglu none 20: 64 64 4 0: failed (RuntimeError: out of" in capsys.readouterr().err
    )
    rows, damaged = measurements.measurements()
    assert damaged == []
    assert {row.kernel_hash for row in rows} == {measurements.kernel_hash("swiglu")}
    found = {(row.kind, row.dtype): dict(row.tiles) for row in rows}
    assert len(found) == 6
    for (kind, _), tuned in found.items():
        name = {"none": "none", "comt": "scalar", "transponder": "channel"}[kind]
        assert tuned == {("swiglu", name, 20): LARGE, ("swiglu_backward", name, 20): LARGE}
    assert card.in_use() == [LARGE] * 6
    fused = [row.step_ms["fused"] for row in rows]
    assert max(fused) < 12, "it was timed in the tiles that were chosen"


def test_what_has_been_measured_is_not_measured_again(card, tmp_path, monkeypatch):
    assert [case.what for case in todo()] == ["bench fp32 swiglu gate-up", "bench bf16 swiglu gate-up"]
    tune(card, tmp_path)
    assert todo() == []
    for where, name, value in [
        (tuning, "kernel_hash", lambda op: "another"),
        (tuning, "versions_here", lambda: ("1.13.1", "3.0")),
        (tuning, "device_here", lambda device: SimpleNamespace(name="another")),
        (measurements, "roots", list),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            assert len(todo()) == 2, name
    assert len(to_tune([LANGUAGE.shapes["60m"]], ["swiglu"], ["none"], ["fp32"], CPU)) == 1


@pytest.mark.slow
def test_it_stops_in_time_and_goes_on(card, tmp_path):
    """What is cut short keeps its whole rounds, which decide nothing, and is measured anew."""
    tune(card, tmp_path)
    whole, card.now = card.now, 0.0
    for path in measurements.own_folder().glob("*/*"):
        path.unlink()
    tune(card, tmp_path / "again", 0.7 * whole)
    assert card.now <= 0.7 * whole + 0.2
    assert [case.dtype for case in todo()] == ["bf16"]
    before = card.now
    tune(card, tmp_path / "again")
    assert todo() == []
    assert card.now - before < 0.7 * whole


def test_everything_is_compiled_first_by_several_processes(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: SimpleNamespace(Pool=lambda n, _: ThreadPool(n)))
    seen = []
    monkeypatch.setattr(tuning, "compile_one", seen.append)
    jobs = [(str(number),) for number in range(5)]
    assert [*compile_all(jobs, 2, lambda: True)] == ["compiled 5 of 5 parts, 2 at a time"]
    assert sorted(seen) == jobs
    assert "compiled 0 of 5" in next(compile_all(jobs, 1, lambda: False))


def test_the_shapes_and_types_of_a_recipe(bench, monkeypatch):
    asked = []
    monkeypatch.setattr("comt_cli.training.devices.pick_device", lambda _: torch.device("cuda", 0))
    monkeypatch.setattr(tuning, "to_tune", lambda *given: asked.append(given) or [])
    done = bench("kernels", "--tune", "--recipe", "table3", "--scale", "small", "--ops", "heads")
    assert done.exit_code == 0, done.exception
    assert done.output.endswith(
        "all that kernels take here has been measured on this card, with these kernels and versions\n"
    )
    ((shapes, ops, gates, dtypes, _),) = asked
    assert (ops, gates, dtypes) == (["heads"], [*GATES], ["bf16"])
    assert len({str(shape) for shape in shapes}) == len(shapes)
    assert all(shape.dimensions["length"] and shape.batch for shape in shapes)
    one = ModelSettings.model_validate({**shapes[0].model, "layers": 1})
    assert one.shape().ffn_width == shapes[0].built.ffn_width
