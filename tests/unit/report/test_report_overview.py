"""The page over all results: made from the written files alone, and what it says is what they say."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from comt_cli.errors import UserError
from comt_cli.report.overview import write_overview
from comt_cli.report.write import write_report

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


def test_it_counts_and_tells_what_agrees_and_what_does_not(written: Bench) -> None:
    text = page(written)
    assert "**Of 2 published directions at scale smoke: agree 1, diverged 1.**" in text
    assert "| [comt, table9](smoke/comt/table9.md) | 2 | 1 | 0 | 0 | 0 | 1 | 0 |" in text
    assert "Gates & norms\\_50% \\| a test. [table9.md](smoke/comt/table9.md)" in text
    agreeing = text.partition("Agrees with the paper:")[2].partition(":\n")[0]
    assert (
        r"- pre-ln+comt: 5.07 % lower \[-5.94, -4.19\]; in the paper 11.1 % lower (c4/130m)." in agreeing.splitlines()
    )
    assert r"- post-ln: 19.1 % higher \[+8.08, +31.2\], diverged here; in the paper 0.82 % higher (c4/130m)." in text
    assert "One seed, so nothing is claimed:\n\n- pre-ln+own: 10.0 % lower.\n" in text


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {1: 95.0, 2: 120.0},
            "Not resolved: the interval spans zero:\n\n- pre-ln+comt: 1.80 % higher \\[-57.7, +145\\]; in",
        ),
        ({1: 103.0, 2: 113.3}, "Disagrees with the paper:\n\n- pre-ln+comt: 3.00 % higher \\[+3.00, +3.00\\]; in the"),
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
    (written.results / "bench" / "cpu").mkdir(parents=True)
    (written.results / "bench" / "cpu" / "step.md").touch()
    text = page(written)
    assert "![table9-hidden-size](smoke/comt/table9-hidden-size.png)" in text
    assert "### comt, figure4" in text
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


def test_changed_settings_are_told(mixed: Bench) -> None:
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results, ["train.save_every=7", "train.log_every=2"])
    assert "Trained with `--set train.save_every=7 --set train.log_every=2`." in page(mixed)


def test_without_a_table_it_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no tables below"):
        write_overview(tmp_path)


def test_a_damaged_table_is_named(written: Bench) -> None:
    path = written.results / "smoke" / "comt" / "table9.csv"
    path.write_text(path.read_text().replace("agrees", "agree", 1))
    with pytest.raises(UserError, match=r"table9\.csv is not a table of this program"):
        page(written)


def test_the_diagnosis_and_the_speeds_of_image_classifiers_are_linked_where_they_are(written: Bench) -> None:
    assert "## Besides" not in page(written)
    for name in ("diagnose/diagnose.md", "bench/a-gpu/step-images.md"):
        (written.results / name).parent.mkdir(parents=True)
        (written.results / name).write_text("# A page\n")
    besides = page(written).partition("## Besides")[2]
    assert "(diagnose/diagnose.md)" in besides
    assert "(bench/a-gpu/step-images.md)" in besides
