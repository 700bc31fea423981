"""The verbs `report` and `status`, in this process; and that none of them imports torch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from comt_cli.app import app
from comt_cli.errors import UserError

if TYPE_CHECKING:
    from conftest import Bench


def comt(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=True)


def test_report_says_what_it_did_not_write_and_how_to(mixed: Bench) -> None:
    first = comt("report")
    assert "99.67 ± 2.60 (3)" in first.output
    assert "wrote runs/results/smoke/comt/table9.{csv,md,tex}\n" in first.output
    path = Path("runs/results/smoke/comt/table9.csv")
    whole = path.read_bytes()
    result = comt("report", "table9", "--seeds", "1")
    assert result.exit_code == 1
    assert f"{path} has 3 finished runs of post-ln at tiny, and" in " ".join(result.stderr.split())
    assert "wrote" not in result.output
    assert path.read_bytes() == whole
    assert "wrote" in comt("report", "table9", "--seeds", "1", "--results", "elsewhere").output
    assert "wrote" in comt("report", "table9", "--seeds", "1", "--overwrite").output
    assert path.read_bytes() != whole


def test_rows_that_nobody_chose_of_changed_settings_are_not_shown(mixed: Bench) -> None:
    for spec in mixed.specs(rows="pre-ln,post-ln", overrides=("train.steps=100",)):
        mixed.finish(spec, 90.0 + spec.seed)
    shown = comt("report", "table9", "--set", "train.steps=100").output
    assert "92.00 ± 0.58 (3)" in shown
    assert "missing" not in shown
    assert "pre-ln+comt" not in shown
    assert "the files have all" in shown


def test_report_writes_a_page_for_browsers(mixed: Bench) -> None:
    comt("report")
    result = comt("report", "--html")
    assert result.exit_code == 0, result.output
    assert result.output == "wrote runs/results/index.html\n"
    both = comt("report", "table9", "--overview", "--html")
    assert both.output.endswith("wrote runs/results/README.md\nwrote runs/results/index.html\n")
    nowhere = comt("report", "--html", "--results", "nowhere").exception
    assert isinstance(nowhere, UserError)
    assert "there are no tables below nowhere" in str(nowhere)
    assert not Path("nowhere").exists()


def test_status_counts_and_shows_progress(mixed: Bench) -> None:
    mixed.started("pre-ln+own", 2).note_error("RuntimeError: a defect")
    with mixed.started("pre-ln+own", 3).lock():
        result = comt("status")
    me = f"process {os.getpid()} on {socket.gethostname()}"
    (failed,) = Path("runs/comt/table9/pre-ln+own/tiny").glob("seed2-*")
    assert result.output.splitlines() == [
        "comt/table9 smoke: 12 runs: 1 unfinished, 1 running, 9 done, 1 diverged",
        "  pre-ln+own, tiny, seed 2: unfinished, step 30 of 200, loss 8.700, "
        f"failed: RuntimeError: a defect ({failed}/error.txt)",
        f"  pre-ln+own, tiny, seed 3: running by {me}, step 30 of 200, loss 8.700, 1,024 tokens/s, 85 s left",
    ]


def test_status_says_where_runs_of_other_recipes_are_listed(mixed: Bench) -> None:
    assert "There are no runs below nowhere. To begin:" in comt("status", "--runs", "nowhere").output
    Path("elsewhere").mkdir()
    Path("runs/by-id").rename("elsewhere/by-id")
    assert "For all: comt runs." in comt("status", "--runs", "elsewhere").output


@pytest.mark.parametrize(("verbs", "heavy"), [("status recipes", "pandas"), ("report", "matplotlib")])
def test_verbs_answer_without_torch_and_heavy_packages(mixed: Bench, verbs: str, heavy: str) -> None:
    """A report is made of data frames, and draws nothing here."""
    code = (
        "import sys; from typer.testing import CliRunner; from comt_cli.tasks import Task\n"
        "Task.identify = lambda self, settings: ('feedfeedfeedfeed', 'c0ffee')\n"
        "from comt_cli.app import app\n"
        f"for verb in {verbs.split()}: assert CliRunner().invoke(app, [verb]).exit_code == 0\n"
        f"print([name for name in ('torch', 'datasets', {heavy!r}) if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
