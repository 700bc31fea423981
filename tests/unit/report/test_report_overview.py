"""The page over all results: made from the written files alone, and what it says is what they say."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from comt_cli.commands.options import DEFAULT_RESULTS
from comt_cli.errors import UserError
from comt_cli.report.overview import _DEFAULT, _GROUPS, write_overview
from comt_cli.report.verdict import Verdict
from comt_cli.report.write import write_report
from comt_cli.report.written import Reader, read_lines, written_below

if TYPE_CHECKING:
    from conftest import Bench


@pytest.fixture
def written(mixed: Bench) -> Bench:
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    shutil.rmtree(mixed.runs)  # the files below results are all there is, as in a clone
    return mixed


def page(bench: Bench) -> str:
    return write_overview(bench.results).read_text(encoding="utf-8")


def test_it_says_on_what_the_results_were_made(written: Bench) -> None:
    text = page(written)
    for line in (
        "- 10 runs; tables that ask for the same training share it.",
        "- Devices: a test CPU and another CPU.",
        "- Networks: LLaMA tiny, 1.2 M parameters, fp32.",
        "- Text: python-docs.",
        "- Tokens a run, padding apart: 100 k.",
        "- Seeds: 1-3.",
        "- Commits: 0123456789ab.",
    ):
        assert f"\n{line}\n" in text
    assert "It is no evidence about networks of the papers' sizes" in text


def test_it_says_which_runs_had_another_number_before(written: Bench) -> None:
    (table,) = (written.results / "smoke/comt").glob("*-runs.csv")
    first, second, *_ = (line["id"] for line in read_lines(table) if line["state"] == "done")
    lines = [
        f"{first},50,40,evening/comt/table9 smoke/comt/table9",
        f"{second},100,101,smoke/comt/table9",
        f"{second},100,900,evening/comt/table9",  # of another scale
        "0123456789ab,100,900,smoke/comt/table9",  # no table shows it
    ]
    (written.results / "superseded.csv").write_text("\n".join(["id,before,after,tables", *lines, ""]))
    assert (
        "\n- 10 runs; tables that ask for the same training share it. 2 of them had been trained twice, for tables "
        "that were made in separate clones, by code that rounds otherwise, to [two numbers](superseded.csv) that are "
        "13 % apart in the middle and 25 % at most: all tables show that of the newer commit.\n"
    ) in page(written)


def test_it_links_to_the_archives_and_says_what_they_lack(written: Bench) -> None:
    smoke = written.results / "smoke"
    assert "Run directories" not in page(written)
    (smoke / "runs.tar.xz").touch()
    assert "\n- Run directories, without weights: [runs.tar.xz](smoke/runs.tar.xz).\n" in page(written)
    (smoke / "not-archived.csv").write_text("id,row\n0123456789ab,a\n1123456789ab,b\n")
    lack = "2 that tables or trials show are in none ([not-archived.csv](smoke/not-archived.csv))"
    assert f": [runs.tar.xz](smoke/runs.tar.xz); {lack}.\n" in page(written)


def test_it_counts_and_tells_what_agrees_and_what_does_not(written: Bench) -> None:
    text = page(written)
    assert "**Of 2 published directions at scale smoke: agree 1, diverged 1.**" in text
    assert "** Holm's correction over each table leaves 1 of the 1 resolved." in text
    assert "| [comt, table9](smoke/comt/table9.md) | 3 | 1 | 0 | 0 | 0 | 0 | 1 | 1 | 0 | 0 | 1 |" in text
    assert "Made by `comt report --overview --results results` from the files" in text
    assert "Gates & norms\\_50% \\| a test. [table9.md](smoke/comt/table9.md)" in text
    agreeing = text.partition("Agrees with the paper:")[2].partition(":\n")[0]
    told = r"- pre-ln+comt: 5.07 % lower \[-5.94, -4.19\], Holm's p 0.0017; in the paper 11.1 % lower (c4/130m)."
    assert told in agreeing.splitlines()
    assert r"- post-ln: 19.1 % higher \[+8.08, +31.2\], diverged here; in the paper 0.82 % higher (c4/130m)." in text
    assert "One seed, so nothing is claimed:\n\n- pre-ln+own: 10.0 % lower.\n" in text


def test_every_compared_cell_is_counted_once_and_listed_once(bench: Bench) -> None:
    grouped = [verdict for _, _, verdicts in _GROUPS for verdict in verdicts]
    assert sorted(grouped) == sorted(set(Verdict) - {Verdict.baseline})
    text = bench.recipe.read_text().replace("c4/130m: 26.95", "c4/130m: 26.73")  # equal to its baseline's
    bench.recipe.write_text(text)
    for row, values in {
        "pre-ln": (100, 110),
        "post-ln": (99, 120),
        "pre-ln+comt": (90, 99),
        "pre-ln+own": (99, 112),
    }.items():
        bench.done(row, dict(enumerate(values, start=1)))
    write_report(bench.loaded(), bench.specs(seeds=[1, 2]), bench.runs, bench.results)
    text = page(bench)
    heads, counts = (
        [part.strip() for part in next(line for line in text.splitlines() if line.startswith(start)).split("|")[2:-1]]
        for start in ("| table |", "| [comt, table9]")
    )
    found = {head: int(count) for head, count in zip(heads, counts, strict=True) if count != "0"}
    assert found == {"compared": 3, "agree": 1, "not resolved": 1, "no direction": 1, "resolved after Holm": 1}
    listed = [line.split(":")[0] for line in text.partition("### comt, table9")[2].splitlines() if line[:2] == "- "]
    assert sorted(listed) == ["- post-ln", "- pre-ln+comt", "- pre-ln+own"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {1: 95.0, 2: 120.0},
            "Not resolved: the interval spans zero:\n\n- pre-ln+comt: 1.80 % higher \\[-57.7, +145\\]; 2 seeds would "
            "show 67.7 % lower or 209 % higher; in the paper",
        ),
        (
            {1: 103.0, 2: 113.3},
            "Disagrees with the paper:\n\n- pre-ln+comt: 3.00 % higher \\[+3.00, +3.00\\], Holm's p",
        ),
        ({1: 95.0}, "One seed, so nothing is claimed:\n\n- pre-ln+comt: 5.00 % lower, the paper's direction; in the"),
        ({1: 105.0}, "- pre-ln+comt: 5.00 % higher, against the paper's direction; in the paper 11.1 % lower"),
        ({1: 100.0}, "- pre-ln+comt: equal; in the paper 11.1 % lower"),
        (
            {},
            "Without a result so far:\n\n- post-ln: missing; in the paper 0.82 % higher (c4/130m).\n- pre-ln+comt: mi",
        ),
    ],
)
def test_every_verdict_has_its_sentence(bench: Bench, values: dict[int, float], told: str) -> None:
    bench.done("pre-ln", {1: 100.0, 2: 110.0})
    bench.done("pre-ln+comt", values)
    write_report(bench.loaded(), bench.specs(), bench.runs, bench.results)
    assert told in page(bench)


def test_a_collapsed_value_of_the_papers_is_no_percentage(bench: Bench) -> None:
    specs = bench.specs("paper")
    for spec in specs:
        if spec.column == "c4/250m":
            bench.finish(spec, 20.0)
    write_report(bench.loaded(), specs, bench.runs, bench.results)
    text = page(bench)
    assert r"- post-ln at c4/250m: equal \[0.00, 0.00\]; in the paper collapsed, 1409.79." in text
    assert "## Scale paper" in text
    assert "no evidence" not in text


def test_it_is_the_same_when_made_again_and_left_alone(written: Bench) -> None:
    path = write_overview(written.results)
    before, changed = path.read_bytes(), path.stat().st_mtime_ns
    write_overview(written.results)
    assert path.stat().st_mtime_ns == changed
    path.write_text("old")
    write_overview(written.results)
    assert path.read_bytes() == before


def test_pictures_are_shown_and_every_link_leads_somewhere(written: Bench) -> None:
    folder = written.results / "smoke" / "comt"
    runs = (folder / "table9-runs.csv").read_text()
    for name in ("table9-hidden-size", "figure4", "figures/pre-ln+own-tiny-seed1/gate-summary"):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "figure4-runs.csv").write_text("\n".join(runs.splitlines()[:2]))
    (folder / "figure4.csv").write_text("layer,position\n1,0\n")
    (folder / "figure4.txt").write_text("Gates of a_method. LLaMA tiny; seed 1. Lines are tokens.\n")
    (written.results / "bench" / "cpu").mkdir(parents=True)
    (written.results / "bench" / "cpu" / "step.md").touch()
    text = page(written)
    assert "![table9-hidden-size](smoke/comt/table9-hidden-size.png)" in text
    figure = text.partition("### comt, figure4\n")[2]
    assert figure.split("\n\n")[1] == "Gates of a\\_method. LLaMA tiny; seed 1. Lines are tokens."
    assert "Drawn from post-ln, tiny, seed 1.\n\n![figure4](smoke/comt/figure4.png)" in text
    targets = [unquote(target) for target in re.findall(r"\]\(([^)]+)\)", text)]
    assert len(targets) > 8
    assert [target for target in targets if not (written.results / target).exists()] == []


def test_tables_of_older_versions_are_told_with_what_they_have(written: Bench) -> None:
    path = written.results / "smoke" / "comt" / "table9-runs.csv"
    lines = [line.split(",") for line in path.read_text().splitlines()]
    kept = [position for position, name in enumerate(lines[0]) if name not in ("corpus", "model", "precision")]
    path.write_text("".join(",".join(line[position] for position in kept) + "\n" for line in lines))
    text = page(written)
    assert "- Text: not recorded." in text
    assert "- Networks: 1.2 M parameters." in text


def test_a_table_without_p_values_gets_them_from_its_intervals(mixed: Bench) -> None:
    """What is said of a difference is made of its interval alone: tables that were written before say as much."""
    mixed.done("pre-ln+own", {1: 90.0, 2: 111.0, 3: 140.0})
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    path = mixed.results / "smoke" / "comt" / "table9.csv"
    with path.open(encoding="utf-8", newline="") as handle:
        lines = list(csv.DictReader(handle))
    new = ("p_value", "p_value_holm", "detectable_low", "detectable_high")
    (table,) = written_below(mixed.results, "smoke", Reader())
    for cell, line in zip(table.cells, lines, strict=True):
        assert cell.adjusted == (pytest.approx(float(line[new[1]]), rel=1e-5) if line[new[1]] else None)
        assert bool(line[new[1]]) == (line["verdict"] in ("agrees", "not resolved"))
    before = page(mixed)
    assert "; 3 seeds would show" in before
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, [key for key in lines[0] if key not in new], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)
    assert page(mixed) == before


@pytest.mark.parametrize(
    ("values", "outside"), [({1: 100.1, 2: 109.9, 3: 105.0}, True), ({1: 80.0, 2: 130.0, 3: 105.0}, False)]
)
def test_a_published_difference_outside_of_the_interval_is_told(
    mixed: Bench, values: dict[int, float], outside: bool
) -> None:
    """Both are not resolved; the paper's 11 % are excluded by one, and within the other."""
    mixed.done("pre-ln+comt", values)
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    text = page(mixed)
    counted = "1 does" if outside else "none do"
    assert f"Of the intervals of those not resolved {counted} not hold the published difference." in text
    (line,) = [line for line in text.splitlines() if line.startswith("- pre-ln+comt")]
    assert line.endswith("(c4/130m), outside of the interval.") == outside
    table = (mixed.results / "smoke" / "comt" / "table9.md").read_text()
    assert ("Not resolved, with the published difference outside of the interval: pre-ln+comt." in table) == outside


def test_an_interval_over_one_seed_is_damage(written: Bench) -> None:
    path = written.results / "smoke" / "comt" / "table9.csv"
    path.write_text(path.read_text().replace(",1 2 3,done,", ",3,done,"))
    with pytest.raises(UserError, match="post-ln at tiny has an interval, and 0 of its seeds"):
        write_overview(written.results)


def test_changed_settings_are_told_as_they_were_typed(mixed: Bench) -> None:
    changed = ["data.corpus=files:my texts/*.txt", "train.batch_size=4"]
    write_report(mixed.loaded(*changed, "train.save_every=7"), mixed.specs(), mixed.runs, mixed.results)
    text = page(mixed)
    (arguments,) = re.findall("Trained with `(.*)`, not with the recipe's settings: not counted above", text)
    assert shlex.split(arguments) == ["--set", changed[0], "--set", changed[1]]
    named = r"^### comt, table9@corpus-files-my-texts-\.txt\+batch_size-4-[0-9a-f]{8}$"
    assert re.search(named, text.replace("\\", ""), re.MULTILINE)
    assert "published direction" not in text


def test_the_command_that_makes_it_names_a_folder_that_is_not_the_usual_one(written: Bench) -> None:
    assert _DEFAULT == DEFAULT_RESULTS
    shutil.move(written.results, DEFAULT_RESULTS)
    assert "Made by `comt report --overview` from" in write_overview(DEFAULT_RESULTS).read_text()
    for folder, shown in (("a b", "'a b'"), (written.folder.parent / "elsewhere", written.folder.parent / "elsewhere")):
        shutil.copytree(DEFAULT_RESULTS, folder)
        assert f"Made by `comt report --overview --results {shown}` from" in write_overview(Path(folder)).read_text()


def test_without_a_table_it_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no tables below"):
        write_overview(tmp_path)


def test_a_damaged_table_is_named(written: Bench) -> None:
    path = written.results / "smoke" / "comt" / "table9.csv"
    path.write_text(path.read_text().replace("agrees", "agree", 1))
    with pytest.raises(UserError, match=r"table9\.csv cannot be read: 'agree' is not a valid Verdict"):
        page(written)  # there is no other


def test_the_diagnosis_and_the_speeds_of_image_classifiers_are_linked_where_they_are(written: Bench) -> None:
    assert "## Besides" not in page(written)
    for name in ("diagnose/diagnose.md", "bench/a-gpu/step-images.md"):
        (written.results / name).parent.mkdir(parents=True)
        (written.results / name).write_text("# A page\n")
    besides = page(written).partition("## Besides")[2]
    assert "(diagnose/diagnose.md)" in besides
    assert "(bench/a-gpu/step-images.md)" in besides
