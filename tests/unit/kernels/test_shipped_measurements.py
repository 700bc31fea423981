"""The measurements that the package ships: all of the committed ones, whole, and about what the choice asks for."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from comt_cli.kernels import measurements
from comt_cli.kernels.choice import Op
from comt_cli.kernels.processors import UNKNOWN
from comt_cli.lab.bench.tables import DTYPES, IMAGES, KERNELS

COMMITTED = Path(__file__).parents[3] / "results" / "bench"


@pytest.fixture(autouse=True)
def only_the_shipped(monkeypatch):
    """Instead of none."""
    monkeypatch.setattr(measurements, "roots", lambda: [measurements.SHIPPED])


def contents(root: Path) -> dict[str, bytes]:
    files = [path for name in (measurements.FILE, measurements.STEP_FILE) for path in root.glob(f"*/{name}")]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def test_they_are_the_committed_ones():
    """`make measured` copies them."""
    assert contents(COMMITTED)
    assert contents(measurements.SHIPPED) == contents(COMMITTED)
    others = {path.name for path in measurements.SHIPPED.rglob("*") if path.is_file()}
    assert others == {measurements.FILE, measurements.STEP_FILE}


def test_operations_are_whole_and_typed():
    found, damaged = measurements.measurements()
    assert damaged == []
    chosen = [row for row in found if row.op in get_args(Op)]
    assert {row.op for row in chosen} == {*get_args(Op)}
    for row in chosen:
        assert {"reference", "reference-compiled"} <= row.step_ms.keys() <= KERNELS["variants"].keys()
        assert row.dtype in DTYPES
        assert row.torch
        assert row.device.device_class != UNKNOWN


def test_steps_are_whole_and_typed():
    """Those of bf16 under autocast are among them: `auto` must not lose them to a change of the file."""
    found, damaged = measurements.measurements(measurements.STEP_FILE)
    assert damaged == []
    assert {(row.device.type, row.op) for row in found if row.dtype == "bf16"} >= {("cpu", "resnet18-b32")}
    assert all(row.step_ms.keys() <= IMAGES.variants.keys() for row in found)


def test_xeons_with_matrix_units_have_measurements():
    found, _ = measurements.measurements()
    assert {str(row.device) for row in found if row.device.device_class == "Intel AMX"} == {
        "Intel(R) Xeon(R) Processor, 2 threads"
    }
