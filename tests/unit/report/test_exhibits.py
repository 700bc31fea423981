"""The exhibits are found by being there, and what is written of them is a frame without its objects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from comt_cli.report import exhibits
from comt_cli.report.frame import frame_csv, frame_of, records_of

if TYPE_CHECKING:
    pass


def test_every_file_has_one_and_names_differ() -> None:
    files = {path.stem for path in Path(exhibits.__path__[0]).glob("*.py")} - {"__init__"}
    kinds = exhibits.exhibits()
    assert {kind.__module__.rpartition(".")[2] for kind in kinds} == files
    named = [(kind.of, kind.name) for kind in kinds if hasattr(kind, "name")]
    assert len({*named}) == len(named)


def test_a_frame_keeps_whole_numbers_whole_and_what_is_absent_empty() -> None:
    frame = frame_of([{"count": 2**60, "share": 1 / 3, "_object": {}}, {"count": None, "word": "x"}])
    assert frame_csv(frame) == f"count,share,word\n{2**60},0.33333333,\n,,x\n"
    assert records_of(frame)[0] == {"count": 2**60, "share": 1 / 3, "word": None}
