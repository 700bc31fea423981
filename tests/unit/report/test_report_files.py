"""The written tables: golden files, escapes, what is not written over, and what a table says about itself."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from comt_cli.errors import StorageError
from comt_cli.files import write_text
from comt_cli.report.caption import in_latex
from comt_cli.report.frame import frame_csv, frame_of, records_of
from comt_cli.report.write import write_report

if TYPE_CHECKING:
    from conftest import Bench


GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("kind", ["csv", "runs", "md", "tex"])
@pytest.mark.parametrize("name", ["mixed", "images"])
def test_files_equal_the_golden_ones(request: pytest.FixtureRequest, name: str, kind: str) -> None:
    bench: Bench = request.getfixturevalue(name)
    assert write_report(bench.loaded(), bench.specs(), bench.runs, bench.results).csv is not None
    file = f"{bench.name}-runs.csv" if kind == "runs" else f"{bench.name}.{kind}"
    text = (bench.results / "smoke" / "comt" / file).read_text(encoding="utf-8")
    for spec in bench.specs():  # an id changes with every new setting: the table's shape does not
        text = text.replace(spec.id, f"{spec.row}:{spec.seed}")
    if os.environ.get("COMT_WRITE_GOLDEN"):
        (GOLDEN / file).write_text(text, encoding="utf-8")
    assert text == (GOLDEN / file).read_text(encoding="utf-8")


def test_a_page_links_to_the_guide_if_it_is_next_to_the_results(mixed: Bench) -> None:
    page = mixed.results / "smoke" / "comt" / "table9.md"
    guide = mixed.folder / "docs" / "statistics.md"
    for link in ("`docs/statistics.md`", "[docs/statistics.md](../../../docs/statistics.md)"):
        write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
        assert f"How to read the tables: {link}." in page.read_text(encoding="utf-8")
        guide.parent.mkdir(exist_ok=True)
        guide.touch()


def test_a_full_disk_is_said(mixed: Bench) -> None:
    mixed.results.write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cannot make"):
        write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)


def test_a_table_that_cost_more_is_not_replaced(mixed: Bench) -> None:
    def write(*, overwrite: bool = False, **selection: object) -> str | None:
        specs = mixed.specs(**selection)
        return write_report(mixed.loaded(), specs, mixed.runs, mixed.results, overwrite=overwrite).unwritten

    path = mixed.results / "smoke" / "comt" / "table9.csv"
    assert write(seeds=[1]) is None
    assert write() is None  # more seeds take the place of fewer
    whole = path.read_bytes()
    for fewer in ({"seeds": [1]}, {"rows": "pre-ln,pre-ln+comt"}):
        assert f"{path} has " in (write(**fewer) or "")
        assert path.read_bytes() == whole
    mixed.done("post-ln", {3: 9.0})  # the diverged one, trained anew: as many runs
    assert write() is None
    assert "3 finished runs of post-ln at tiny, and this table 2. " in (write(seeds=[1, 2, 4]) or "")
    mixed.done("post-ln", {4: 9.0})
    assert "of post-ln at tiny, and this table 3 with other seeds. " in (write(seeds=[1, 2, 4]) or "")
    assert write(seeds=[1, 2, 3, 4]) is None
    assert write(seeds=[1], overwrite=True) is None
    assert path.read_bytes() != whole


def test_a_table_whose_writing_was_stopped_is_written_the_next_time(mixed: Bench, monkeypatch) -> None:
    """Wherever that was, nothing is refused: more seeds were to take the place of fewer."""

    def write(**selection: object) -> str | None:
        return write_report(mixed.loaded(), mixed.specs(**selection), mixed.runs, mixed.results).unwritten

    def failing(path: Path, text: str) -> None:
        if not left:
            raise StorageError(f"cannot write {path}")
        left.pop()
        write_text(path, text)

    for written in range(4):
        shutil.rmtree(mixed.results, ignore_errors=True)
        assert write(seeds=[1]) is None
        left = [None] * written
        with monkeypatch.context() as patch:
            patch.setattr("comt_cli.report.write.write_text", failing)
            with pytest.raises(StorageError):
                write()
        assert write() is None


def test_names_cannot_lead_out_of_the_results(bench: Bench) -> None:
    text = bench.recipe.read_text().replace("paper: comt\n", "paper: x/../../../out\n").replace("table9", "a/../../t")
    bench.recipe.write_text(text)
    bench.done("pre-ln", {1: 100.0})
    report = write_report(bench.loaded(), bench.specs(), bench.runs, bench.results)
    assert report.csv is not None
    assert report.csv.resolve().is_relative_to(bench.results.resolve())


@pytest.mark.parametrize("seeds", [[1], [1, 2, 3]])
def test_changed_settings_have_a_table_of_their_own(mixed: Bench, seeds: list[int]) -> None:
    """Whether it has fewer runs than the recipe's table, or as many; whatever changes no number makes none."""
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    folder = mixed.results / "smoke" / "comt"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    other = ("train.steps=100", "train.kernels=reference", "train.batch_size=8")
    for seed in seeds:
        result = mixed.directory("pre-ln", seed, overrides=other).result_file
        result.write_text(json.dumps({"state": "done", "perplexity": 9.0}), encoding="utf-8")
    specs = mixed.specs(overrides=other, seeds=seeds)
    report = write_report(mixed.loaded(*other), specs, mixed.runs, mixed.results)
    assert report.csv is not None
    assert report.csv.name == "table9@steps-100.csv"
    assert report.cells.attrs["table"].changed == ("train.steps=100",)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if "@" not in path.name} == before


def test_latex_reads_no_sign_of_a_text_as_a_command() -> None:
    signs = {"\\": r"\textbackslash{}", "{": r"\{", "_": r"\_", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#"}
    assert in_latex("".join(signs)) == "".join(signs.values())
    assert in_latex("a\tb e\u0301 ł ð ☃") == "a b é ł U+00F0 U+2603"


def test_what_was_published_elsewhere_is_a_ratio_beside_ours_and_no_verdict(bench: Bench) -> None:
    own = 'in_paper: false, published: {baseline: 20, value: 19, of: "a network"}'
    bench = replace(bench, text=bench.text.replace("in_paper: false", own))
    bench.done("pre-ln", {1: 100.0, 2: 110.0, 3: 105.0})
    bench.done("pre-ln+own", {1: 120.0, 2: 130.0, 3: 126.0})
    found = bench.table().at("pre-ln+own")
    assert found["published_percent"] == pytest.approx(-5.0)
    assert found["verdict"] == "worse"


def test_a_higher_accuracy_is_the_better_one(images: Bench) -> None:
    table = images.table()
    assert {each["row"]: each["verdict"] for each in table.records} == {
        "baseline": "-",
        "sliding-window": "agrees",  # higher here and in the paper
        "pixel": "disagrees",  # lower here, higher in the paper
        "pixel-4": "diverged here",
        "own": "one seed",
    }
    assert table.best == ["sliding-window"]
    assert table.at("sliding-window")["difference_points"] == pytest.approx((0.75 + 0.5 + 0.75) / 3)
    images.done("pixel-4", {1: 79.0, 2: 80.25, 3: 79.25})
    assert images.table().at("pixel-4")["verdict"] == "agrees"  # lower here and in the paper
    images.done("baseline", {1: 0.0, 2: 0.0, 3: 0.0})  # which is still a baseline
    assert images.table().at("sliding-window")["verdict"] == "agrees"


def test_a_frame_keeps_whole_numbers_whole_and_what_is_absent_empty() -> None:
    frame = frame_of([{"count": 2**60, "share": 1 / 3, "_object": {}}, {"count": None, "word": "x"}])
    assert frame_csv(frame) == f"count,share,word\n{2**60},0.33333333,\n,,x\n"
    assert records_of(frame)[0] == {"count": 2**60, "share": 1 / 3, "word": None}
