"""Measured speeds on the page: merged by key, goals in words, the figure from the CSV alone."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from comt_cli.lab.bench.layouts import kernels_page, step_page
from comt_cli.lab.bench.page import (
    Column,
    Goal,
    Page,
    merge_rows,
    renew_page,
    shown,
    spread,
    word,
    write_benchmark,
    write_page,
)

pytestmark = pytest.mark.usefixtures("quick_figures")

VARIANTS = {"plain": "no gates", "gated": "with gates"}
PAGE = Page(
    name="speed",
    title="Speed",
    said=("What it is.",),
    key=("device", "shape", "precision", "variant"),
    sort=("size", "precision", "variant"),
    order={"size": ["60m", "1b"], "variant": list(VARIANTS)},
    columns=(
        Column("size", word("size"), is_number=False),
        Column("variant", word("variant"), is_number=False),
        Column("ms (p10 to p90)", spread("step_ms")),
        Column("ratio", shown("ratio", 3)),
    ),
    goals=(Goal("ratio", "goal_ratio", "step"), Goal("mfu", "goal_mfu", "MFU", at_least=True)),
    meanings=VARIANTS,
)
FOLDER = Path("bench") / "a-fast-cpu"
ENDS = ("ratio_spread", "ratio_uncertainty", "ratio_settled")


def measured(variant: str, ms: float, commit: str, precision: str = "fp32", **more: Any) -> dict[str, Any]:
    return {
        "device": "A (fast) CPU",
        "shape": "d8",
        "size": "60m",
        "precision": precision,
        "variant": variant,
        "step_ms": ms,
        "step_ms_p10": ms - 1,
        "step_ms_p90": ms + 1,
        "ratio": ms / 10,
        "goal_ratio": None,
        "mfu": None,
        "goal_mfu": None,
        "git_commit": commit,
    } | more


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_rows_are_replaced_by_their_key_and_others_kept(tmp_path):
    write_benchmark(PAGE, [measured("gated", 12.0, "aaa"), measured("plain", 10.0, "aaa")], tmp_path)
    other = measured("plain", 9.0, "aaa", precision="bf16")
    write_benchmark(PAGE, [other], tmp_path)
    again = [measured("gated", 11.0, "bbb"), measured("plain", 9.5, "bbb")]
    files, narrower = write_benchmark(PAGE, again, tmp_path)
    assert files == [tmp_path / FOLDER / "speed.csv", tmp_path / FOLDER / "speed.md"]
    assert narrower == []
    assert [(row["variant"], row["step_ms"], row["git_commit"]) for row in rows_of(files[0])] == [
        ("plain", "9.0", "aaa"),
        ("plain", "9.5", "bbb"),
        ("gated", "11.0", "bbb"),
    ]


def test_a_run_of_some_variants_replaces_no_part_of_a_whole_one(tmp_path):
    """Its verdicts would be relative to what it has. What took turns apart from that is written."""
    whole = [measured("gated", 12.0, "aaa"), measured("plain", 10.0, "aaa")]
    path = write_benchmark(PAGE, whole, tmp_path)[0][0]
    before = path.read_bytes()
    assert write_benchmark(PAGE, [measured("gated", 11.0, "bbb")], tmp_path)[0] == []
    assert path.read_bytes() == before
    both = [measured("gated", 11.0, "bbb", goal_ratio=None), measured("gated", 5.0, "bbb", precision="bf16")]
    files, narrower = write_benchmark(PAGE, both, tmp_path)
    assert [(row["precision"], row["step_ms"], row["goal_ratio"]) for row in narrower] == [("fp32", "11.0", "")]
    assert {row["step_ms"] for row in rows_of(files[0])} == {"12.0", "10.0", "5.0"}
    # a variant that nobody can measure any more holds nothing up
    older = [name.replace("gated", "removed") for name in path.read_text().splitlines() if "fp32,gated" in name]
    path.write_text(path.read_text() + "\n".join(older) + "\n")
    assert write_benchmark(PAGE, [measured(name, 8.0, "ccc") for name in VARIANTS], tmp_path)[1] == []


def test_too_few_rounds_replace_none_that_have_an_interval(tmp_path):
    """Whatever cut them short, and in the cache of `kernels: auto` (`merge_rows`) too. Of the best one's own ratio
    there is always an interval; what took turns with it stays or goes as one."""

    def run(commit: str, gated: float | None, precision: str = "fp32") -> list[dict[str, Any]]:
        return [
            measured("plain", 10.0, commit, precision, ratio_uncertainty=0.0),
            measured("gated", 11.0, commit, precision, ratio_uncertainty=gated),
        ]

    path = write_benchmark(PAGE, run("aaa", 0.02), tmp_path)[0][0]
    before = path.read_bytes()
    files, lesser = write_benchmark(PAGE, run("bbb", None), tmp_path)
    assert (files, [row["variant"] for row in lesser]) == ([], ["plain", "gated"])
    assert path.read_bytes() == before
    files, lesser = write_benchmark(PAGE, [*run("bbb", None), *run("bbb", None, "bf16")], tmp_path)
    assert [row["precision"] for row in lesser] == ["fp32", "fp32"]
    assert {(row["precision"], row["git_commit"]) for row in rows_of(files[0])} == {("fp32", "aaa"), ("bf16", "bbb")}
    assert [row["variant"] for row in merge_rows(PAGE, run("ccc", None), path)] == ["plain", "gated"]
    assert merge_rows(PAGE, [*run("ccc", 0.9), *run("ccc", None, "bf16")], path) == []
    assert {row["git_commit"] for row in rows_of(path)} == {"ccc"}


def test_beams_and_gates_take_turns_too():
    from comt_cli.lab.bench.record import pages

    apart = {"kernels": {"gates", "variant"}, "decode-translation": {"beam", "variant"}}
    for name, page in pages().items():
        assert {*page.turns} == apart.get(name, {"variant"}) <= {*page.key}


@pytest.mark.parametrize("other", [{"precision": "bf16"}, {"shape": "d9"}, {"size": "1b", "shape": "d9"}], ids=str)
def test_another_key_is_another_row(tmp_path, other):
    write_benchmark(PAGE, [measured("plain", 10.0, "aaa")], tmp_path)
    write_benchmark(PAGE, [measured("plain", 5.0, "aaa", **other)], tmp_path)
    assert {row["step_ms"] for row in rows_of(tmp_path / FOLDER / "speed.csv")} == {"10.0", "5.0"}


def test_a_file_of_an_older_version(tmp_path):
    """A column that it lacks is empty; one that is no more is dropped, a variant that is no more comes last."""
    path = tmp_path / FOLDER / "speed.csv"
    path.parent.mkdir(parents=True)
    old = [{**measured(name, 9.0, "old"), "gone": "1"} for name in ("plain", "removed")]
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, [name for name in old[0] if name != "mfu"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(old)
    write_benchmark(PAGE, [measured("gated", 11.0, "new", "bf16")], tmp_path)
    rows = rows_of(path)
    assert [(row["variant"], row["mfu"]) for row in rows] == [("gated", ""), ("plain", ""), ("removed", "")]
    assert "gone" not in rows[0]
    assert "| 60m | removed | 9.00 (8.00 to 10.00) | 0.900 | old |" in path.with_suffix(".md").read_text()
    path.write_text(path.read_text() + "half a line\n")
    write_benchmark(PAGE, [measured("gated", 11.0, "newer", "bf16")], tmp_path)
    assert len(rows_of(path)) == 3, "nobody knows what it is of"


GOLDEN = """\
# Speed on A (fast) CPU

What it is.
Measured at several commits, each row at its own: aaa, bbb.

| size | variant | ms (p10 to p90) | ratio | goals | commit |
| --- | --- | ---: | ---: | --- | --- |
| 60m | plain | 10.0 (9.0 to 11.0) | 1.000 | MFU missed (0.4400, at least 0.45) | bbb |
| 60m | gated | 11.2 (10.2 to 12.2) | 1.120 | step missed (1.1200, at most 1.08) | aaa |
| 1b | plain | 1,234.0 (1,233.0 to 1,235.0) | 123.400 | - | bbb |
| 1b | gated | 9.00 (8.00 to 10.00) | - | - | bbb |

- `plain`: no gates
- `gated`: with gates
"""


def test_the_page_word_for_word(tmp_path):
    rows = [
        measured("gated", 9.0, "bbb", size="1b", shape="d9", ratio=None, goal_ratio=1.02),
        measured("plain", 1234.0, "bbb", size="1b", shape="d9"),
        measured("plain", 10.0, "bbb", mfu=0.44, goal_mfu=0.45),
    ]
    (path, _), _ = write_benchmark(PAGE, rows, tmp_path)
    merge_rows(PAGE, [measured("gated", 11.2, "aaa", goal_ratio=1.08)], path)
    write_page(PAGE, path)
    assert (tmp_path / FOLDER / "speed.md").read_text() == GOLDEN


@pytest.mark.parametrize(
    ("value", "told"),
    [(1.08, "step met (1.080, at most 1.08)"), (1.0801, "step missed (1.0801, at most 1.08)"), (None, None)],
)
def test_a_goal_is_met_by_what_is_equal(value, told):
    row = {"ratio": "" if value is None else str(value), "goal_ratio": "1.08"}
    assert Goal("ratio", "goal_ratio", "step").verdict(row) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (61234.5, "images/s met (61,234, at least 60,000)"),
        (59999.9, "images/s missed (59,999.9, at least 60,000)"),
    ],
)
def test_a_goal_in_thousands(value, told):
    goal = Goal("images", "goal_images", "images/s", at_least=True, decimals=0)
    assert goal.verdict({"images": str(value), "goal_images": "60000"}) == told


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (("1.5", "0.012", "True"), "step met (1.040 ± 1.2 %, at most 1.08)"),
        (("1.51", "0.012", "True"), "step too noisy (p90 / p10 of a time is 1.51, beyond 1.5)"),
        (("1.5", "0.04", "True"), "step not settled (1.0400 ± 4.0 %, at most 1.08)"),
        (("1.5", "0.012", "False"), "step met (1.040 ± 1.2 %, at most 1.08)"),
        (("1.5", "", "False"), "step not settled (1.0400, at most 1.08, too few rounds for an interval)"),
        (("1.2",), "step met (1.040, at most 1.08, uncertainty not recorded)"),
        (("1.2", "", ""), "step met (1.040, at most 1.08, uncertainty not recorded)"),
        (("", "", ""), "step met (1.040, at most 1.08, spread not recorded)"),
        ((), "step met (1.040, at most 1.08, spread not recorded)"),
    ],
    ids=str,
)
def test_no_verdict_on_noise(known, told):
    """Nor without an interval, for want of rounds; where there is one it decides, settled or not. Rows of earlier
    versions have neither column, or the spread alone."""
    row = {"ratio": "1.04", "goal_ratio": "1.08"} | dict(zip(ENDS, known, strict=False))
    assert Goal("ratio", "goal_ratio", "step", timed="ratio").verdict(row) == told


@pytest.mark.parametrize(
    ("mfu", "told"),
    [
        ("0.44", "MFU missed (0.4400 ± 1.4 %, at least 0.45)"),
        ("0.444", "MFU not settled (0.4440 ± 1.4 %, at least 0.45)"),
        ("0.456", "MFU not settled (0.4560 ± 1.4 %, at least 0.45)"),
        ("0.457", "MFU met (0.457 ± 1.4 %, at least 0.45)"),
    ],
)
def test_a_goal_within_the_interval(mfu, told):
    row = {"mfu": mfu, "goal_mfu": "0.45", "step_ms_spread": "1.1", "step_ms_uncertainty": "0.014"}
    goal = Goal("mfu", "goal_mfu", "MFU", at_least=True, timed="step_ms")
    assert goal.verdict(row | {"step_ms_settled": "True"}) == told


def test_a_page_is_made_anew_without_measuring(tmp_path):
    """Goals as they are today, in the CSV and on the page; what was measured stays."""
    (csv_file, page_file), _ = write_benchmark(PAGE, [measured("gated", 11.2, "aaa", goal_ratio=1.08)], tmp_path)
    before = rows_of(csv_file)
    page_file.unlink()
    page = replace(PAGE, renew=lambda row: {"goal_ratio": 1.2 if row["variant"] == "gated" else None, "other": 1})
    assert renew_page(page, csv_file) == [csv_file, page_file]
    assert rows_of(csv_file) == [before[0] | {"goal_ratio": "1.2"}]
    assert "step met (1.120, at most 1.2)" in page_file.read_text()
    # rows that were there get today's goals too when others join them
    joining = [measured("plain", 10.0, "bbb", "bf16")]
    write_benchmark(replace(PAGE, renew=lambda _: {"goal_ratio": None}), joining, tmp_path)
    assert {row["goal_ratio"] for row in rows_of(csv_file)} == {""}


def test_a_page_made_anew_loses_no_row_and_needs_no_column_but_the_key(tmp_path):
    """Of every page: a variant that is no more stays, and percentiles, goals and the best plain one may be missing."""
    from comt_cli.lab.bench.record import pages

    for name, page in pages().items():
        known = {column: values[0] for column, values in ((each, list(page.order[each])) for each in page.order)}
        row = dict.fromkeys((*page.key, *page.sort), "8") | known
        path = tmp_path / f"{name}.csv"
        with path.open("w", newline="") as handle:
            writer = csv.DictWriter(handle, [*row, "step_ms"], restval="1.5")
            writer.writeheader()
            writer.writerows([row | {"variant": "no more"}, row])
        assert path in renew_page(page, path), name
        assert [row["variant"] for row in rows_of(path)] == [known["variant"], "no more"]
        assert path.with_suffix(".md").read_text().count("\n| ") == 4


def test_a_csv_of_an_older_version_is_left_as_it_is(tmp_path):
    path = tmp_path / "speed.csv"
    path.write_text("device,shape,variant\nA (fast) CPU,d8,plain\n")
    assert renew_page(PAGE, path) == []
    assert [each.name for each in tmp_path.iterdir()] == ["speed.csv"]


# ---- the pages there are

NAMES = {"plain-compiled": "", "plain-fused": "", "comt-fused": "", "transponder-fused": ""}


def page_of(variants: dict[str, str]) -> Page:
    plain = ["plain-compiled", "plain-fused"]
    return step_page(
        "step", "Training step", (), variants, ["60m"], plain, "tokens", "other", {"step": "goal_step_ratio"}
    )


def step_row(variant: str, ratio: float, precision: str) -> dict[str, Any]:
    return {
        "device": "GPU",
        "shape": "d512",
        "size": "60m",
        "precision": precision,
        "variant": variant,
        "step_ms": 10 * ratio,
        "step_ms_p10": 9.0,
        "step_ms_p90": 12.0,
        "best_plain": "plain-fused",
        "step_ratio_to_best_plain": ratio,
        "forward_ratio_to_best_plain": ratio - 0.02,
        "goal_step_ratio": 1.08,
        "git_commit": "abc",
    }


def texts(figure: Figure) -> set[str]:
    return {
        text for axes in figure.axes for text in (axes.get_title(), *(t.get_text() for t in axes.get_yticklabels()))
    }


def test_the_step_figure_is_drawn_from_the_csv(tmp_path):
    page = page_of(NAMES)
    rows = [step_row(name, 1 + number / 20, p) for p in ("fp32", "bf16-pure") for number, name in enumerate(NAMES)]
    files, _ = write_benchmark(page, rows, tmp_path)
    assert [path.name for path in files] == ["step.csv", "step.md", "step.png", "step.pdf", "step.txt", "step.tex"]
    assert all(path.stat().st_size > 0 for path in files)
    assert "![Training step](step.png)" in files[1].read_text()
    assert page.draw is not None
    figure = page.draw(rows_of(files[0]))
    assert figure is not None
    assert {"60m, fp32", "60m, bf16-pure", *NAMES} <= texts(figure)
    drawn = {round(float(line.get_xdata()[0]), 6) for line in figure.axes[0].get_lines()}
    # per cent beyond the plain step: steps, forward passes, the goal
    assert {0.0, 5.0, 10.0, 15.0, -2.0, 3.0, 13.0, 8.0} <= drawn
    # What is written by hand into the CSV is what is drawn: there is no other source.
    before = files[2].read_bytes()
    files[0].write_text(files[0].read_text().replace("1.15", "2.9"))
    write_page(page, files[0])
    assert files[2].read_bytes() != before
    assert "2.900" in files[1].read_text()


@pytest.mark.parametrize(("ratio", "ticks"), [(1.4, {10, 20, 50}), (2.5, {10, 100, 1000})])
def test_the_axis_has_a_mark_beyond_its_linear_part(ratio, ticks, tmp_path):
    page = page_of({"plain-fused": "", "window-fused": ""})
    rows = [step_row("plain-fused", 1, "fp32"), step_row("window-fused", ratio, "fp32")]
    assert page.draw is not None
    figure = page.draw([{name: str(value) for name, value in row.items()} for row in rows])
    assert figure is not None
    assert {int(tick) for tick in figure.axes[0].get_xticks()} == {-10, -5, 0, 5} | ticks


def kernel_row(op: str, width: int, gates: str, variant: str) -> dict[str, Any]:
    times = {f"{name}_ms{end}": 1.0 for name in ("forward", "step") for end in ("", "_p10", "_p90")}
    return {
        "device": "GPU",
        "op": op,
        "shape": f"d{width}-b2x4-qkv",
        "tokens": 8,
        "width": width,
        "gates": gates,
        "dtype": "fp32",
        "variant": variant,
        "step_ratio_to_plain_compiled": 1.5,
        **times,
        "git_commit": "abc",
    }


def test_kernels_are_sorted_by_number_and_products_alone_are_not_drawn(tmp_path):
    page = kernels_page({"plain": "", "fused": ""}, {"heads": "", "gemm": ""}, ["none", "comt-r2"], ["fp32"])
    rows = [kernel_row(op, width, "none", "fused") for width in (1536, 384) for op in ("gemm", "heads")]
    files, _ = write_benchmark(page, rows, tmp_path)
    assert [(row["op"], row["width"]) for row in rows_of(files[0])] == [
        ("heads", "384"), ("heads", "1536"), ("gemm", "384"), ("gemm", "1536"),
    ]  # fmt: skip
    assert page.draw is not None
    figure = page.draw(rows_of(files[0]))
    assert figure is not None
    (table,) = [axes for axes in figure.axes if axes.get_title()]
    assert table.get_title() == "fp32"
    assert [label.get_text() for label in table.get_yticklabels()] == ["heads, qkv: 8 x 384", "heads, qkv: 8 x 1536"]
    assert [label.get_text() for label in table.get_xticklabels()] == ["fused, no gates"]
    assert [text.get_text() for text in table.texts] == ["1.50", "1.50"]
    only = [kernel_row("gemm", 384, "none", "plain")]
    assert [path.suffix for path in write_benchmark(page, only, tmp_path / "other")[0]] == [".csv", ".md"]


def test_pages_show_columns_that_their_rows_have(monkeypatch):
    """A misspelt column would show as empty everywhere: what the benchmarks give is what the pages ask for."""
    import torch

    from comt_cli.lab.bench import rounds
    from comt_cli.lab.bench.decode import run_decode_benchmark
    from comt_cli.lab.bench.decode_translation import run_translation_benchmark
    from comt_cli.lab.bench.kernels import run_gemm_benchmark
    from comt_cli.lab.bench.record import pages
    from comt_cli.lab.bench.shapes import bert, captioner, llama, resnet, translator
    from comt_cli.lab.bench.step import run_step_benchmark
    from comt_cli.lab.bench.subjects import SUBJECTS

    tiny = (
        llama("bench", 16, 20, 1, 2, vocabulary=32, batch=2, length=8),
        resnet("resnet18-b32", "resnet18", pixels=8, batch=2, width=4, blocks=(1,)),
        translator("mt-bench", {"size": "nano", "width": 16, "heads": 2}, vocabulary=32, batch=1, tokens=16),
        captioner("caption-bench", {"size": "nano", "width": 16, "heads": 2}, vocabulary=32, batch=1),
        bert("bert-bench", {"size": "tiny", "width": 16, "heads": 2}, vocabulary=32, batch=1, length=8),
        llama("residual-bench", 16, 20, 1, 2, vocabulary=32, batch=2, length=8),
    )
    monkeypatch.setattr(rounds, "PATIENCE", 0.0)
    cpu = torch.device("cpu")
    measured = {
        "kernels": run_gemm_benchmark(tiny[:1], ["fp32"], cpu, 3),
        "decode": run_decode_benchmark(tiny[:1], ["plain"], ["fp32"], [1], cpu, 3, prompt=8),
        "decode-translation": run_translation_benchmark(tiny[2:3], ["plain"], ["fp32"], [1], cpu, 3, tokens=3),
    }
    columns = {name: {*next(rows for rows in news if isinstance(rows, list))[0]} for name, news in measured.items()}
    for subject, shape in zip(SUBJECTS, tiny, strict=True):
        *_, rows = run_step_benchmark(shape, "fp32", ["plain"], cpu, 3)
        columns[subject.page] = {*rows[0]}
    assert columns.keys() == pages().keys()
    for name, page in pages().items():
        asked: set[str] = set()

        class Asked(dict):  # type: ignore[type-arg]
            def get(self, name, default=None, asked=asked):
                asked.add(name)
                return default

            __getitem__ = get

        for column in page.columns:
            column.show(Asked())
        for goal in page.goals:
            asked |= {goal.value, goal.goal}
            if goal.timed is not None:
                asked |= {f"{goal.timed}_{end}" for end in ("spread", "uncertainty", "settled")}
        of_cuda = {each for each in asked if "nondeterministic" in each}  # CPU steps are deterministic
        no_times = {f"{each}_settled" for each in columns[name] if f"{each}_uncertainty" not in columns[name]}
        assert (asked - of_cuda - no_times) | set(page.key) | set(page.sort) <= columns[name], name
