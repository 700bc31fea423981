"""`comt bench kernels --tune`: each kernel takes its fastest tile, once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from comt_cli.kernels import choice, measurements
from comt_cli.kernels.triton import tiles
from comt_cli.kernels.triton.tiles import Tile
from comt_cli.lab import kernels, runner
from comt_cli.lab.kernels import KernelCase, kernel_cases, run_tuning, to_tune
from comt_cli.lab.record import writer
from comt_cli.lab.runner import Session
from comt_cli.lab.subjects import LANGUAGE

CPU = torch.device("cpu")
SMALL, LARGE, TOO_LARGE = Tile(16, 64, 1), Tile(32, 64, 2, 8, 255), Tile(64, 64, 4)
MILLISECONDS = {SMALL: 2.0, LARGE: 1.0}
LAUNCHES = [(f"swiglu{end}", kind) for end in ("", "_backward") for kind in ("none", "scalar", "channel")]
OPERATION = kernels.operation


@pytest.fixture(autouse=True)
def _alone(small, monkeypatch, tmp_path):
    monkeypatch.setattr(measurements, "own_folder", lambda: tmp_path / "own")
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path / "own"])


class Card:
    """In the place of a GPU whose kernels of SwiGLU have three tiles; a step takes as long as those in use say."""

    @staticmethod
    def in_use() -> list[Tile]:
        tuned = {key[:2]: tile for key, tile in tiles._tuned.items()}
        return [tuned.get(kernel, SMALL) for kernel in LAUNCHES]

    def operation(self, *given):
        built = OPERATION(*given)
        reference = built.forms["reference"]

        def fused():
            if TOO_LARGE in self.in_use():
                raise RuntimeError("out of resources: shared memory")
            return reference()

        return replace(built, forms={"reference": reference, "fused": fused})

    def __call__(self, part) -> float:
        part()
        return sum(MILLISECONDS[tile] for tile in self.in_use()) / 1e3


@pytest.fixture
def card(monkeypatch):
    found = Card()
    monkeypatch.setattr(tiles, "TILES", dict.fromkeys(LAUNCHES, (SMALL, LARGE, TOO_LARGE)))
    monkeypatch.setattr(tiles, "_tuned", {})
    monkeypatch.setattr(choice, "_tuned", {})
    monkeypatch.setattr(kernels, "operation", found.operation)
    monkeypatch.setattr(kernels, "computed_by_triton", lambda _: True)
    for module in (runner, kernels):
        monkeypatch.setattr(module, "stopwatch_for", lambda *_, **__: found)
    monkeypatch.setattr(kernels, "compile_all", lambda *_: None)
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: None)
    return found


def todo() -> list[KernelCase]:
    return to_tune(kernel_cases([LANGUAGE.shapes["bench"]], ["swiglu"], ["fp32", "bf16"], CPU))


def tune(card: Card, results: Path) -> Session:
    with Session(14, None, writer(results)) as session:
        run_tuning(todo(), session)
    return session


def test_each_kernel_takes_the_tiles_that_were_the_fastest_and_is_not_measured_again(card, tmp_path, monkeypatch):
    """Forward and backward, with each kind of gates; those that the card has no room for are left out."""
    assert [case.what for case in todo()] == ["bench fp32 swiglu gate-up", "bench bf16 swiglu gate-up"]
    assert not tune(card, tmp_path).failed
    rows, damaged = measurements.measurements()
    assert damaged == []
    assert {row.kernel_hash for row in rows} == {measurements.kernel_hash("swiglu")}
    found = {(row.kind, row.dtype): dict(row.tiles) for row in rows}
    assert len(found) == 6
    for (kind, _), tuned in found.items():
        name = kernels.KINDS[kind]
        assert tuned == {("swiglu", name, 20): LARGE, ("swiglu_backward", name, 20): LARGE}
    assert card.in_use() == [LARGE] * 6
    assert max(row.step_ms["fused"] for row in rows) < 12, "it was timed in the tiles that were chosen"
    assert todo() == []
    for where, name, value in [
        (kernels, "kernel_hash", lambda op: "another"),
        (kernels, "versions_here", lambda: ("1.13.1", "3.0")),
        (kernels, "device_here", lambda device: "another"),
        (measurements, "roots", list),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            assert len(todo()) == 2, name
