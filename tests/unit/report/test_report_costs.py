"""What steps cost beside a table: columns of it, of the networks that were measured alone, and a figure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.commands.table_figures import write_costs_figure
from comt_cli.errors import UserError
from comt_cli.report.costs import network_key, read_costs
from comt_cli.report.costs_page import write_costs
from comt_cli.report.costs_words import _on_front, costs_frame
from comt_cli.report.write import Report, costs_file, write_report

if TYPE_CHECKING:
    from conftest import Bench

STEPS = {"pre-ln": 1.0, "post-ln": 0.99, "pre-ln+comt": 1.06, "pre-ln+own": 1.21}
PERPLEXITIES = {"pre-ln": 30.0, "post-ln": 31.0, "pre-ln+comt": 27.0, "pre-ln+own": 28.0}


def measured(bench: Bench, **changes: Any) -> list[dict[str, Any]]:
    """What `comt bench costs` would have measured of every row."""
    first = {spec.row: spec for spec in reversed(bench.specs())}
    return [
        {
            "network": network_key(first[row]),
            "scale": "smoke",
            "row": row,
            "column": "tiny",
            "baseline": "pre-ln",
            "device": "a test CPU",
            "parameters": 1000,
            "flops": 1e9,
            "flops_ratio": 1.02,
            "bytes_mib": 100 * step**2,
            "bytes_ratio": round(step**2, 4),
            "saved_mib": 10.0,
            "saved_ratio": 1.1,
            "step_ms": 30.0,
            "step_ratio": 3.0,
            "step_ratio_uncertainty": None,
            "compiled_step_ms": 20 * step,
            "compiled_step_ratio": step,
            "compiled_step_ratio_uncertainty": 0.01 if row != "pre-ln" else 0.0,
            "git_commit": "feedc0ffee00",
            **changes,
        }
        for row, step in STEPS.items()
    ]


@pytest.fixture
def trained(bench: Bench) -> Bench:
    for spec in bench.specs():
        bench.finish(spec, PERPLEXITIES[spec.row] + spec.seed / 10)
    return bench


def report_of(bench: Bench) -> Report:
    return write_report(bench.loaded(), bench.specs(), bench.runs, bench.results)


def write(bench: Bench, rows: list[dict[str, Any]]) -> None:
    write_costs(costs_file(bench.results, "smoke", bench.loaded()), rows, "A title", list(STEPS))


def test_a_table_has_the_costs_that_lie_beside_it(trained: Bench) -> None:
    files = report_of(trained).files
    assert files is not None
    assert "step, ×" not in files.markdown.read_text(encoding="utf-8")
    write(trained, measured(trained))
    report_of(trained)
    page = files.markdown.read_text(encoding="utf-8")
    head = next(line for line in page.splitlines() if line.startswith("| method"))
    line = next(line for line in page.splitlines() if line.startswith("| pre-ln+comt"))
    cells = dict(zip(head.split(" | "), line.split(" | "), strict=True))
    assert {key: cells[key] for key in ("FLOPs, ×", "bytes, ×", "kept, ×", "step, ×")} == {
        "FLOPs, ×": "1.02",
        "bytes, ×": "1.12",
        "kept, ×": "1.10",
        "step, ×": "1.06 ± 0.01",
    }
    assert "of a compiled training step" in page
    assert "feedc0ffee00" in page


def test_another_network_is_not_the_one_that_was_measured(trained: Bench) -> None:
    write(trained, measured(trained))
    wider = replace(trained, text=trained.text.replace("{size: tiny}", "{size: tiny, width: 96, heads: 4}"))
    assert read_costs(costs_file(wider.results, "smoke", wider.loaded()), wider.specs()) is None


def test_where_a_row_was_not_compiled_all_are_shown_as_they_train(trained: Bench) -> None:
    rows = measured(trained)
    rows[-1] |= {"compiled_step_ratio": None, "compiled_step_ms": None}
    write(trained, rows)
    costs = read_costs(costs_file(trained.results, "smoke", trained.loaded()), trained.specs())
    assert costs is not None
    assert not costs.compiled
    assert {each.step for each in costs.of.values()} == {3.0}


def test_a_file_of_something_else_is_refused_and_named(trained: Bench) -> None:
    path = costs_file(trained.results, "smoke", trained.loaded())
    path.parent.mkdir(parents=True)
    path.write_text("row,column\npre-ln,tiny\n", encoding="utf-8")
    with pytest.raises(UserError, match="comt bench costs"):
        report_of(trained)


@pytest.mark.usefixtures("quick_figures")
def test_the_figure_names_what_nothing_beats(trained: Bench) -> None:
    write(trained, measured(trained))
    report = report_of(trained)
    assert report.files is not None
    frame = costs_frame(report.table)
    assert frame is not None
    assert dict(zip(frame["row"], frame["on_front"], strict=True)) == {
        "post-ln": True,  # worse than the baseline, but quicker
        "pre-ln+comt": True,
        "pre-ln+own": False,  # worse and slower than CoMT
    }
    written = write_costs_figure(report.table, report.files)
    assert {path.suffix for path in written} == {".csv", ".png", ".pdf", ".txt", ".tex"}
    assert write_costs_figure(report.table, report.files) == []
    caption = next(path for path in written if path.suffix == ".txt").read_text(encoding="utf-8")
    assert "post-ln and pre-ln+comt" in caption


PLACES = st.dictionaries(
    st.sampled_from("abcdefgh"), st.tuples(st.floats(0.5, 3), st.floats(-30, 30)), min_size=1, max_size=8
)


@given(PLACES)
def test_whoever_is_not_on_the_front_is_beaten_by_somebody_who_is(found: dict[str, tuple[float, float]]) -> None:
    places = {(row, "tiny"): place for row, place in found.items()}
    front = {row for row in found if _on_front(row, "tiny", places)}
    best = [found[row] for row in front] + [(1.0, 0.0)]
    for row, (step, loss) in found.items():
        beaten = any(at[0] <= step and at[1] < loss for at in best)
        assert beaten == (row not in front)
