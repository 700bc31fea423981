"""`--slurm` on a real Slurm of one node: a run as a job, twice submitted, warned of its time limit, requeued."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from one_node_slurm import Cluster, one_node_slurm
from tiny_runs import assert_same_run, tiny_spec, train

from comt_cli.campaign.slurm import job_of, job_standings, submit
from comt_cli.campaign.slurm_site import Site
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec

pytestmark = pytest.mark.timeout(400)
SITE = Site(time=5, partition="short", requeues=3)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with one_node_slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def cluster(node: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Jobs have the environment of who submits them, as on any cluster."""
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    return node


def words(runs: Path, spec: RunSpec) -> str:
    job = job_of(runs, spec)
    assert job is not None
    return job_standings([job])[spec.id].words


def test_a_run_is_trained_by_one_job_and_goes_on_after_the_time_limits_warning(cluster, tiny_corpus, tmp_path):
    runs = tmp_path / "runs of slurm"
    long = tiny_spec(tiny_corpus, steps=500, log_every=5, save_every=200)
    same = long.model_copy(update={"table": "another", "row": "another-row"})
    short = tiny_spec(tiny_corpus, seed=2)
    first = list(submit([long, same, short], runs, "cpu", SITE))
    assert [(each.spec, each.is_new) for each in first] == [(long, True), (short, True)]
    directory, number = RunDirectory.of(runs, long), first[0].job.number

    # While they are queued or running nothing is submitted again.
    again = list(submit([long, same, short], runs, "cpu", SITE))
    assert [each.is_new for each in again] == [False, False]
    assert again[0].job.number == number

    cluster.wait("the job trains", lambda: len(directory.metrics()) > 0)
    assert words(runs, long) == f"running (job {number} on {os.uname().nodename.partition('.')[0]})"
    # What Slurm does by itself some minutes before the limit.
    cluster.ask("scancel", "--signal=USR2", number)
    cluster.wait("the job is requeued", lambda: words(runs, long) == f"queued (job {number})")
    log = first[0].job.log.read_text(encoding="utf-8")
    assert "of 500; everything is saved" in log
    assert directory.state() is RunState.unfinished
    cluster.wait("both runs end", lambda: directory.result_file.exists() and RunDirectory.of(runs, short).result())

    starts = json.loads(directory.environment_file.read_text(encoding="utf-8"))
    assert [start["step"] > 0 for start in starts] == [False, True]
    assert_same_run(directory, train(long, tmp_path / "undisturbed"))
    assert RunDirectory.of(runs, same).shown.is_symlink()

    done = list(submit([long, short], runs, "cpu", SITE))
    assert [(each.state, each.job, each.is_new) for each in done] == [(RunState.done, None, False)] * 2
