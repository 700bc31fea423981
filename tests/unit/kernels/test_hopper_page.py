"""results/bench/hopper-counts.md: what follows from its counts is what follows from them today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hopper_step import COUNTED, FULL, HALF, LANGUAGE, step_ratio, table

PAGE = (Path(__file__).resolve().parents[3] / "results/bench/hopper-counts.md").read_text(encoding="utf-8")


def test_the_step_is_estimated_from_the_counts_of_the_page():
    assert "\n".join(table()) in PAGE
    for kernel, (instructions, _) in COUNTED.items():
        line = next(line for line in PAGE.splitlines() if line.startswith(f"| 60m | transponder | {kernel} | 65536 |"))
        counted = float(re.split(r" \| ", line)[10])
        assert instructions == pytest.approx(3 * counted if kernel.startswith("heads") else counted)


def test_more_instructions_a_clock_and_columns_alone_make_it_quicker():
    for size in LANGUAGE.gpu_sizes:
        full, tiles, half = (
            step_ratio(size, issue, whole_tiles=whole) for issue, whole in ((FULL, False), (FULL, True), (HALF, False))
        )
        assert 1 < full < min(tiles, half)
