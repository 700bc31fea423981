"""Machines that ask which kernels to take, and files of measurements made up for them."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest
from choice_cases import COLUMNS, H200, ROW, THIS_CPU

from comt_cli.kernels import choice, measurements


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine that can run all kernels and has no measurements but those below tmp_path."""
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: None)
    monkeypatch.setattr(choice, "device_here", lambda device: THIS_CPU if device.type == "cpu" else H200)
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path / "bench"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.fixture
def measured(tmp_path):
    """Writes a file of measurements: rows of what differs from ROW, each with its times by variant."""

    def write(*rows: tuple[dict, dict[str, float | str]], folder: str = "here", root: str = "bench") -> Path:
        path = tmp_path / root / folder / "kernels.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="1")
            writer.writeheader()
            for changes, times in rows:
                for variant, step_ms in times.items():
                    ends = {"step_ms_p10": step_ms, "step_ms_p90": step_ms}
                    writer.writerow({**ROW, **ends, **changes, "variant": variant, "step_ms": step_ms})
        return path

    return write
