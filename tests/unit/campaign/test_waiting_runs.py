"""Runs that start from others: their order in the queue, what they wait for, and what becomes of them. Nothing is
trained here."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from tiny_runs import image_spec

from comt_cli.campaign.queue import Ending, RunOutcome, RunQueue
from comt_cli.campaign.slurm.site import Site
from comt_cli.campaign.slurm.submission import submit
from comt_cli.files import write_json
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.known import needed_runs
from comt_cli.runs.plan import RunSpec, RunStart

SOURCE = image_spec()
FIRST, SECOND = (
    image_spec(seed=seed).model_copy(update={"start": RunStart(run=SOURCE), "row": f"started-{seed}"})
    for seed in (2, 3)
)
THIRD = image_spec(seed=4).model_copy(update={"start": RunStart(run=SECOND)})


def of(runs: Path, spec: RunSpec) -> RunDirectory:
    directory = RunDirectory.of(runs, spec)
    directory.create(spec)
    return directory


def end(runs: Path, spec: RunSpec, state: str = "done", **more: object) -> None:
    write_json(of(runs, spec).result_file, {"state": state, **more})


def taken(queue: RunQueue) -> RunSpec | None:
    shared = queue.take()
    return None if shared is None else shared.spec


def ends(queue: RunQueue, spec: RunSpec, ending: Ending = Ending.done, reason: str | None = None) -> None:
    (shared,) = (each for each in queue.every if each.id == spec.id)
    queue.record(RunOutcome.of(shared, queue.runs, ending, reason))


def endings(queue: RunQueue) -> dict[str, Ending]:
    return {outcome.spec.id: outcome.ending for outcome in queue.summary().outcomes}


def test_a_run_is_taken_once_its_source_is_done(tmp_path):
    plain = image_spec(seed=9)
    queue = RunQueue([THIRD, FIRST, SECOND, plain, SOURCE.model_copy(update={"table": "another"})], tmp_path)
    assert [shared.spec for shared in queue.every] == [SOURCE, SECOND, THIRD, FIRST, plain]
    assert len(queue.every[0].specs) == 2, "what a table starts from may be its own row"
    assert taken(queue) == SOURCE
    assert taken(queue) == plain, "a run that waits does not keep others back"
    assert taken(queue) is None
    ends(queue, SOURCE)
    assert [taken(queue), taken(queue), taken(queue)] == [SECOND, FIRST, None]
    ends(queue, SECOND)
    assert taken(queue) == THIRD
    assert len(queue.summary().having(Ending.left)) == 3


@pytest.mark.parametrize("is_done", [False, True])
def test_a_run_with_weights_of_its_own_needs_no_source(is_done, tmp_path):
    of(tmp_path, FIRST).checkpoint_file.touch()
    if is_done:
        end(tmp_path, FIRST)
    queue = RunQueue([FIRST], tmp_path)
    assert taken(queue) == (None if is_done else FIRST)
    assert SOURCE.id not in endings(queue)
    assert [shared.spec for shared in queue.every] == [SOURCE, FIRST]  # what is done must not decide about threads
    assert [shared.spec for shared in needed_runs([FIRST], tmp_path)] == [FIRST]


def test_a_source_that_diverged_fails_what_starts_from_it(tmp_path):
    end(tmp_path, SOURCE, "diverged", diverged_at=5)
    queue = RunQueue([FIRST, THIRD], tmp_path)
    assert taken(queue) is None
    found = {outcome.spec.id: outcome for outcome in queue.summary().having(Ending.failed)}
    assert set(found) == {FIRST.id, SECOND.id, THIRD.id}
    reason = "it starts from comt/tiny-images a-row, tiny, seed 1, which diverged at step 5"
    assert found[FIRST.id].reason == RunDirectory.of(tmp_path, FIRST).error() == reason
    assert found[FIRST.id].remedy is not None
    assert found[THIRD.id].reason.endswith(f"seed 3, which failed: {reason}")


def test_a_source_that_is_trained_elsewhere_is_looked_at_again(tmp_path):
    queue = RunQueue([FIRST], tmp_path)
    directory = of(tmp_path, SOURCE)
    assert taken(queue) == SOURCE
    with directory.lock():
        ends(queue, SOURCE, Ending.elsewhere, "by process 12 on another")
        assert taken(queue) is None
        assert endings(queue)[FIRST.id] is Ending.left
        end(tmp_path, SOURCE)
    assert taken(queue) == FIRST
    queue = RunQueue([SECOND], tmp_path / "let go of")
    assert taken(queue) == SOURCE
    ends(queue, SOURCE, Ending.elsewhere, "by process 12 on another")
    assert taken(queue) == SOURCE


def test_a_job_begins_after_its_sources(tmp_path, monkeypatch):
    slurm, runs = FakeSlurm(tmp_path / "slurm", monkeypatch), tmp_path / "runs"

    def dependency(number: str) -> list[str]:
        return [line for line in slurm.script(number) if "dependency" in line]

    site = Site(time=60)
    jobs = [(each.spec.seed, each.job and each.job.number) for each in submit([THIRD, FIRST], runs, None, site)]
    assert jobs == [(1, "1"), (3, "2_0"), (2, "2_1"), (4, "3")], "an array of those that wait for the same run"
    assert dependency("1") == []
    assert dependency("2") == ["#SBATCH --dependency=afterany:1"]
    assert dependency("3") == ["#SBATCH --dependency=afterany:2_0"]
    slurm.forget("2_1")
    held = Site(time=60, sbatch={"dependency": 12})  # a job's number is no text in YAML
    assert [each.is_new for each in submit([FIRST], runs, None, held)] == [False, True]
    assert dependency("4") == ["#SBATCH --dependency=12,afterany:1"]
    slurm.forget("4")
    slurm.put("1", "RUNNING", "node7")
    with of(runs, SOURCE).lock():
        assert [each.is_new for each in submit([FIRST], runs, None, site)] == [False, True]
    assert dependency("5") == ["#SBATCH --dependency=afterany:1"]


def test_arrays_whose_sources_are_tasks_of_one(tmp_path, monkeypatch):
    slurm, runs = FakeSlurm(tmp_path / "slurm", monkeypatch), tmp_path / "runs"
    sources = [image_spec(seed=seed) for seed in (5, 6)]
    started = [
        image_spec(seed=10 * source.seed + number).model_copy(update={"start": RunStart(run=source)})
        for source in sources
        for number in (0, 1)
    ]
    submitted = submit([*started, image_spec(seed=7)], runs, None, Site(time=60, array_size=2))
    jobs = {each.spec.seed: each.job.number for each in submitted}
    assert jobs == {5: "1_0", 6: "1_1", 7: "2", 50: "3_0", 51: "3_1", 60: "4_0", 61: "4_1"}
    dependencies = [line for number in "1234" for line in slurm.script(number) if "dependency" in line]
    assert dependencies == [f"#SBATCH --dependency=afterany:1_{task}" for task in (0, 1)]
