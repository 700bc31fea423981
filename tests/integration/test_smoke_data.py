"""An empty cache is filled today with what the committed results were trained on; and files of the hub are streamed."""

from __future__ import annotations

import csv
import gzip
import json
import platform
import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from comt_cli.data.hub import stream_files
from comt_cli.recipe.find import find_recipe
from comt_cli.runs.plan import RunSpec
from comt_cli.verbs.plan import plan_recipe

ROOT = Path(__file__).parents[2]
PYTHON = "3.11.7"  # whose documentation the committed language models read (concepts.md says so)
MAKERS = ("sentencepiece", "numpy", "pillow", "matplotlib")  # the packages that decide what comes out

LARGE = 16
"""Rendering pictures with more pixels a side takes as long as all the rest: their content is taken from the results."""


def committed() -> list[tuple[str, str, set[str], set[str], str]]:
    """Recipe, scale, content hashes, ids and seeds of the trained runs of every committed file that says its recipe."""
    found = []
    for path in sorted((ROOT / "results").glob("*/*/*-runs.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if rows and rows[0].get("recipe"):
            contents, ids = ({row[key] for row in rows if row["data_content"]} for key in ("data_content", "id"))
            seeds = ",".join(sorted({row["seed"] for row in rows}, key=int))
            found.append((rows[0]["recipe"], rows[0]["scale"], contents, ids, seeds))
    return found


def planned(recipe: str, scale: str, seeds: str) -> list[RunSpec]:
    """All runs of these seeds that its table may show: of a sweep with trials those at every point."""
    plan = plan_recipe(recipe, scale, seeds=seeds)
    if not plan.loaded.has_trials(scale):
        return plan.specs
    points = plan.loaded.grids[scale].points
    said = [[f"{key}={value}" for key, (value, _) in point.items()] for point in points]
    return [spec for each in said for spec in plan_recipe(recipe, scale, each, seeds=seeds).specs]


@pytest.mark.slow
def test_committed_results_are_of_todays_data(monkeypatch):
    """The session's cache was empty when it began, and filled by today's code since."""
    if platform.python_version() != PYTHON:
        pytest.skip(f"the committed results read the documentation of Python {PYTHON}")
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for package in MAKERS:
        if (here := metadata.version(package)) not in re.findall(rf"^{package}==([^\s;]+)", pinned, re.MULTILINE):
            pytest.skip(f"{package} {here} is not the version of constraints.txt")
    monkeypatch.chdir(ROOT)
    files = committed()
    assert files
    made: dict[str, str] = {}
    for recipe, scale, contents, ids, seeds in files:
        packages = re.findall(r"package:(\w+)/", find_recipe(recipe).read_text(encoding="utf-8"))
        if any(find_spec(package) is None for package in packages):
            continue  # ours/retrofit starts from published weights, and no test installs them
        specs = planned(recipe, scale, seeds)
        for spec in specs:
            if spec.data_fingerprint in made:
                continue
            if getattr(spec.settings.data, "size", 0) > LARGE:
                (made[spec.data_fingerprint],) = contents
            else:
                made[spec.data_fingerprint] = spec.task.prepare(spec.settings).content_hash
        assert contents <= {made[spec.data_fingerprint] for spec in specs}, recipe
        assert ids <= {spec.with_content(made[spec.data_fingerprint]).id for spec in specs}, recipe


@pytest.mark.filterwarnings("default")  # the libraries' own
def test_each_file_is_one_shard_that_can_be_read_alone(tmp_path: Path) -> None:
    """The one contact with `datasets` that works offline: local files, in the formats of the hub, streamed."""
    pytest.importorskip("datasets")
    import pyarrow
    import pyarrow.parquet

    for file in range(3):
        texts = [f"file {file} row {row}" for row in range(5)]
        with gzip.open(tmp_path / f"c4-train.{file:05d}-of-00003.json.gz", "wt") as handle:
            handle.writelines(json.dumps({"text": text, "timestamp": "t", "url": "u"}) + "\n" for text in texts)
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / f"{file:04d}.parquet", row_group_size=2)
    for pattern in ("c4-train.*.json.gz", "*.parquet"):
        files = stream_files(str(tmp_path / pattern))
        assert len(files) == 3
        assert [row["text"] for row in files[1]()] == [f"file 1 row {row}" for row in range(5)]
