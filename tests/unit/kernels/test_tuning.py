"""The table of tile sizes: whole, read back as written, chosen by nearness, measured; and compiled for Hopper here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import triton

from comt_cli.benchmarks.tune import tune
from comt_cli.errors import StorageError
from comt_cli.kernels import tuning
from comt_cli.kernels.triton.projection import UNALIGNED
from comt_cli.kernels.tuning import ROWS, SHARED_MEMORY, Tiles, Tuned, candidates, configuration, estimated
from comt_cli.tasks.settings.llama import LLAMA_SIZES

TILES = Tiles(32, 64, 32, 4, 4, 3, 0, True)


# ---- the table


def test_it_knows_every_product_of_every_size():
    known = {row.shape for row in tuning.table()}
    assert len(known) == len(tuning.table())
    for name, size in LLAMA_SIZES.items():
        products = [(3 * size.width, size.width), (size.width, size.width), (2 * size.ffn_width, size.width)]
        for n, d in (*products, (size.width, size.ffn_width)):
            for t in ROWS:
                for dtype in ("16-bit", "fp32"):
                    assert ("projection", n, d, t, dtype) in known, name


def test_it_is_as_the_code_would_write_it(tmp_path):
    path = tmp_path / "tuned.csv"
    tuning.write(tuning.table(), path)
    assert path.read_text() == tuning.TABLE.read_text()


def test_what_nobody_measured_is_as_estimated():
    """The estimates stand in the code; the table must not say something else under that name."""
    rows = [row for row in tuning.table() if row.source == tuning.ESTIMATED]
    assert all(row.tiles == estimated(row.n, row.d, row.t, row.dtype) for row in rows)
    assert all(row.source for row in tuning.table())


def test_every_tile_fits():
    for row in tuning.table():
        itemsize = 2 if row.dtype == "16-bit" else 4
        assert row.tiles.shared_bytes(itemsize, rank=32) <= SHARED_MEMORY
        for side in (row.tiles.rows, row.tiles.columns, row.tiles.inner):
            assert side >= 16
            assert side & (side - 1) == 0


def test_a_row_written_again_replaces_the_old(tmp_path):
    path = tmp_path / "tuned.csv"
    first = Tuned("projection", 64, 32, 1024, "fp32", TILES, "estimated")
    other = replace(first, n=128)
    tuning.write([other, first], path)
    measured = replace(first, tiles=replace(TILES, same_pass=False), source="A device, with a comma")
    tuning.write([measured], path)
    assert list(tuning.read(path)) == [measured, other]


def test_what_is_written_is_what_launches_take(tmp_path, monkeypatch):
    """At once, though the table was read before; and a disk that is full leaves it whole."""
    path = tmp_path / "tuned.csv"
    row = Tuned("projection", 64, 32, 1024, "fp32", TILES, "estimated")
    tuning.write([row], path)
    monkeypatch.setattr(tuning, "TABLE", path)
    try:
        tuning.table.cache_clear()
        tuning._nearest.cache_clear()
        assert configuration("projection", 64, 32, 1024, torch.float32) == TILES
        other = replace(TILES, group=2)
        tuning.write([replace(row, tiles=other)], path)
        assert configuration("projection", 64, 32, 1024, torch.float32) == other
        before = path.read_text()

        def full(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            tuning.write([row], path)
        assert path.read_text() == before
        assert [each.name for each in tmp_path.iterdir()] == ["tuned.csv"]
    finally:
        tuning.table.cache_clear()
        tuning._nearest.cache_clear()


# ---- what a launch takes


@pytest.fixture
def small_table(monkeypatch):
    """Two widths at every number of rows, told apart by their `group`."""
    rows = [
        Tuned("projection", n, 512, t, dtype, replace(TILES, group=group * 10 + i, same_pass=dtype == "fp32"), "x")
        for group, n in ((1, 512), (2, 1536))
        for i, t in enumerate(ROWS)
        for dtype in ("16-bit", "fp32")
    ]
    monkeypatch.setattr(tuning, "table", lambda: tuple(rows))
    tuning._nearest.cache_clear()
    yield
    tuning._nearest.cache_clear()


@pytest.mark.parametrize(
    ("n", "d", "t", "group"),
    [
        (512, 512, 64, 10),
        (1536, 512, 65536, 22),
        (800, 512, 64, 10),  # 800/512 < 1536/800
        (900, 512, 64, 20),
        (512, 100_000, 64, 10),
        (512, 512, 0, 10),
        (512, 512, 1, 10),
        (512, 512, 200, 10),  # 256 lies between 64 and 1024 in ratio
        (512, 512, 300, 11),
        (512, 512, 10**9, 12),
    ],
)
def test_the_nearest_row_is_taken(small_table, n, d, t, group):
    for dtype, same_pass in ((torch.bfloat16, False), (torch.float16, False), (torch.float32, True)):
        assert configuration("projection", n, d, t, dtype) == replace(TILES, group=group, same_pass=same_pass)


def test_a_kernel_it_does_not_know(small_table):
    with pytest.raises(KeyError, match="swiglu"):
        configuration("swiglu", 1, 1, 1, torch.float32)


# ---- measuring


@pytest.mark.parametrize("t", ROWS)
@pytest.mark.parametrize(("dtype", "itemsize"), [("16-bit", 2), ("fp32", 4)])
def test_candidates(t, dtype, itemsize):
    found = candidates(t, dtype, rank=8)
    assert 10 < len(found) == len(set(found)) < 150
    assert all(tiles.shared_bytes(itemsize, 8) <= SHARED_MEMORY for tiles in found)
    assert {tiles.same_pass for tiles in found} == {True, False}
    assert estimated(512, 512, t, dtype) in found


@pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="on a GPU the benchmark of kernels runs this")
def test_the_fastest_is_returned_and_what_does_not_fit_passed_over(monkeypatch):
    from triton.runtime.errors import OutOfResources

    few = [replace(TILES, group=group) for group in (1, 2, 3)]
    monkeypatch.setattr("comt_cli.benchmarks.tune.candidates", lambda t, dtype, rank: few)
    times = iter([None, 3.0, 2.0, 5.0, 6.0, 7.0])

    def measure(call):
        zhat, u = call()
        assert (zhat.shape[1], u.shape[1]) == (20, 4)
        if (time := next(times)) is None:
            raise OutOfResources(1, 2, "shared memory")
        return time

    found = list(tune([(20, 12)], [3, 5], ["fp32"], rank=4, device="cpu", measure=measure))
    assert found == [
        (Tuned("projection", 20, 12, 3, "fp32", few[2], "cpu"), 2.0),
        (Tuned("projection", 20, 12, 5, "fp32", few[0], "cpu"), 5.0),
    ]


@pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="on a GPU the benchmark of kernels runs this")
def test_a_shape_for_which_no_tiles_fit_is_passed_over(monkeypatch):
    from triton.runtime.errors import OutOfResources

    monkeypatch.setattr("comt_cli.benchmarks.tune.candidates", lambda t, dtype, rank: [TILES])

    def measure(call):
        if call.args[0].shape[0] == 3:
            raise OutOfResources(1, 2, "shared memory")
        return 1.0

    found = list(tune([(20, 12)], [3, 5], ["fp32"], rank=4, device=torch.device("cpu"), measure=measure))
    assert found == [(Tuned("projection", 20, 12, 5, "fp32", TILES, "cpu"), 1.0)]


# ---- compiled for Hopper


def no_compiler() -> str | None:
    """Why nothing can be compiled for a GPU here."""
    if (Path(triton.__file__).parent / "backends/nvidia/bin/ptxas").exists():
        return None
    return "this Triton has no ptxas: it cannot compile for NVIDIA's GPUs"


@pytest.mark.skipif(no_compiler() is not None, reason=str(no_compiler()))
def test_the_tables_tiles_compile_for_hopper_and_spill_nothing(tmp_path):
    """Registers and shared memory as ptxas gives them. Spilled registers go through memory in the inner loop."""
    chosen = sorted({(row.tiles, row.dtype) for row in tuning.table()}, key=str)
    launches = [
        (asdict(tiles), "fp32" if dtype == "fp32" else "bf16", "fp32", rank, True)
        for tiles, dtype in chosen
        for rank in ((8, 32) if tiles.registers else (8,))
    ]
    launches += [(asdict(UNALIGNED), "bf16", "fp32", 8, False)]
    launches += [(asdict(tiles), "fp16", "fp16", 8, True) for tiles, dtype in chosen if dtype == "16-bit"][-1:]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, Path(__file__).with_name("compile_for_hopper.py"), json.dumps(launches)],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(found) == len(launches)
    for (tiles, dtype, _, rank, aligned), kernel in zip(launches, found, strict=True):
        what = f"{tiles} in {dtype} with {rank} columns of u: {kernel}"
        assert kernel["spilled"] == 0, what
        assert kernel["shared"] <= SHARED_MEMORY, what
        # fp32 is exact, on the ordinary units; tiles of 16 rows are too few for a warp group's instruction.
        assert (kernel["wgmma"] > 0) == (dtype != "fp32" and tiles["rows"] >= 64), what
        assert (kernel["copies"] > 0) == (aligned or dtype == "fp32"), what  # they take 4 bytes at least
        if tiles["registers"] and rank == 8:
            assert kernel["registers"] <= tiles["registers"], what
            assert 2 * (kernel["shared"] + 1024) <= 228 * 1024, what  # two programs a multiprocessor
