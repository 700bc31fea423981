"""The site file of `--slurm`; which runs become jobs, what a fake Slurm is asked for, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from tiny_runs import tiny_spec

from comt_cli.campaign.slurm import (
    Site,
    TrainJob,
    begin_anew,
    job_of,
    job_standings,
    minutes,
    read_site,
    submit,
)
from comt_cli.errors import UserError
from comt_cli.files import write_json
from comt_cli.recipe.problems import RecipeError
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec

SITE = Site(time=60)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def specs(tiny_corpus: str) -> list[RunSpec]:
    return [tiny_spec(tiny_corpus, seed=seed) for seed in (1, 2)]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def numbers(specs: list[RunSpec], runs: Path, site: Site = SITE) -> list[tuple[str | None, bool]]:
    """The job of each run, and whether it is new."""
    return [(each.job.number if each.job else None, each.is_new) for each in submit(specs, runs, None, site)]


def words(runs: Path, specs: list[RunSpec]) -> list[str]:
    standings = job_standings(specs, runs)
    return [standings[spec.request].words for spec in specs if spec.request in standings]


WHOLE = """\
# A cluster's ways.
partition: gpu
time: 12:00:00
gpus: 2
cpus: 16
memory: 64G
account: mine
qos: high
constraint: a100|h100
sbatch: {mail-type: END, exclusive: true, oversubscribe: false}
setup:
  - module load cuda
  - export A='b c'
warning: 300
requeues: 20
"""


def site_of(tmp_path: Path, text: str) -> Site:
    path = tmp_path / "site.yaml"
    path.write_text(text, encoding="utf-8")
    return read_site(path)


def test_sbatch_is_given_what_the_site_file_says(slurm, specs, runs, tmp_path):
    site = site_of(tmp_path, WHOLE)
    assert numbers(specs[:1], runs, site) == [("1", True)]
    script = slurm.script("1")
    options = {line.removeprefix("#SBATCH ") for line in script if line.startswith("#SBATCH")}
    logs = runs.resolve() / "slurm" / specs[0].request
    assert {
        *(f"--job-name=comt-{specs[0].request}", f"--output={logs}/%j_0_log.out", "--nodes=1", "--ntasks-per-node=1"),
        *("--time=720", "--partition=gpu", "--gpus-per-node=2", "--cpus-per-task=16", "--mem=64G", "--account=mine"),
        *("--qos=high", "--constraint='a100|h100'", "--mail-type=END", "--exclusive", "--signal=USR2@300"),
        *("--requeue", "--open-mode=append"),
    } <= options
    assert not any("oversubscribe" in option for option in options)
    begin = script.index("export OMP_NUM_THREADS=8")  # two processes share the job's processors
    assert script[begin + 1 : begin + 3] == ["module load cuda", "export A='b c'"]
    (command,) = (line for line in script if line.startswith("srun"))
    assert "--cpus-per-task=16" in command
    assert script.index(command) > begin
    numbers(specs[1:], runs)
    for option in ("--partition", "--gpus", "--mem", "--account", "--qos", "--constraint"):
        assert option not in "\n".join(slurm.script("2")), "what the site does not say sbatch is not given"


def test_a_run_is_submitted_once(slurm, specs, runs):
    same = specs[0].model_copy(update={"table": "another"})
    assert numbers([specs[0], same], runs) == [("1", True)]
    assert numbers([same, *specs], runs) == [("1", False), ("2", True)]
    assert words(runs, specs) == ["queued (job 1)", "queued (job 2)"]
    slurm.put("1", "RUNNING", "node7")
    slurm.put("2", "REQUEUED")
    assert words(runs, specs) == ["running (job 1 on node7)", "queued (job 2)"]
    assert numbers(specs, runs) == [("1", False), ("2", False)]
    assert len(slurm.lines()) == 2
    assert all(RunDirectory.of(runs, spec).shown.is_symlink() for spec in (*specs, same))


def test_a_job_that_ended_without_a_result_has_failed_and_is_submitted_anew(slurm, specs, runs):
    numbers(specs, runs)
    slurm.forget("1")
    log = runs / "slurm" / specs[0].request / "1_0_log.out"
    assert words(runs, specs) == [f"failed (job 1, see {log})", "queued (job 2)"]
    slurm.forget("2")
    assert numbers(specs, runs) == [("3", True), ("4", True)]


def test_another_clusters_job_of_the_same_number_is_not_ours(slurm, specs, runs):
    numbers(specs[:1], runs)
    slurm.put("1", "RUNNING", "node7", name="someone-elses")
    assert words(runs, specs[:1])[0].startswith("failed (job 1, see ")
    assert numbers(specs[:1], runs) == [("2", True)]


def test_what_is_done_or_being_trained_is_not_submitted(slurm, specs, runs):
    done, running = (RunDirectory.of(runs, spec) for spec in specs)
    done.create(specs[0])
    write_json(done.result_file, {"state": "diverged"})
    running.create(specs[1])
    with running.lock():
        found = list(submit(specs, runs, None, SITE))
    assert [(each.state, each.job) for each in found] == [(RunState.diverged, None), (RunState.running, None)]
    assert slurm.lines() == []


def test_where_slurm_does_not_answer_nothing_is_submitted_and_nothing_claimed(slurm, specs, runs):
    numbers(specs[:1], runs)
    slurm.falls_silent()
    said = "squeue does not answer: slurm_load_jobs error: Unable to contact slurm controller"
    with pytest.raises(UserError, match=said):
        numbers(specs, runs)
    assert words(runs, specs) == [f"submitted to Slurm (job 1; {said})"]
    assert len(slurm.lines()) == 1


def test_a_refused_job_says_why_and_leaves_no_trace_in_the_queue(slurm, specs, runs):
    submissions = submit(specs, runs, None, SITE)
    assert next(submissions).job.number == "1"
    slurm.refuses()
    with pytest.raises(UserError, match="sbatch: error: invalid partition specified: nope"):
        next(submissions)
    assert [job_of(runs, spec) is not None for spec in specs] == [True, False]


def test_queued_runs_are_not_trained_anew(slurm, specs, runs):
    assert begin_anew(specs, runs) == []
    numbers(specs, runs)
    with pytest.raises(UserError, match="2 of these runs are in Slurm's queue") as refused:
        begin_anew(specs, runs)
    assert refused.value.hint == "End their jobs first: scancel 1 2"


def test_a_job_that_cannot_train_says_why_and_ends_with_its_status(specs, runs, capsys, monkeypatch):
    monkeypatch.setenv("COMT_TRACK", "")
    with pytest.raises(SystemExit) as ended:
        TrainJob()(specs[0].model_dump(mode="json"), str(runs), "cpu:3000", 2, [])
    assert ended.value.code == 2
    assert "comt: --device cpu:3000 names one device, but there are 2 processes" in capsys.readouterr().err


def test_times_are_as_slurm_writes_them(tmp_path):
    site = site_of(tmp_path, "time: 90\n")
    assert (site.time, site.processes, site.warning) == (90, 1, 120)
    times = {"00:30:00": 30, "100:00:30": 6001, "2-00": 2880, "1-06:30": 1830, "1-00:00:01": 1441}
    assert {text: minutes(text) for text in times} == times


BROKEN = [
    ("partition: gpu", "partion: gpu", "line 2: partion: unknown key; did you mean partition?"),
    ("time: 12:00:00\n", "", "time: is missing"),
    ("12:00:00", "12:00", "line 3: time: '12:00' is not a time"),
    ("12:00:00", "00:05:00", "line 14: warning: 300 seconds are not less than the time of a job"),
    ("64G", "64 GB", "line 6: memory: '64 GB' is not an amount of memory"),
    ("mail-type: END", "gpus-per-task: 1", "line 10: sbatch: gpus-per-task "),
    ("mail-type: END", "output: here", "line 10: sbatch: output "),
    ("mail-type: END", "--nice: 3", "line 10: sbatch: '--nice' is not a long option of sbatch"),
    ("partition: gpu", 'partition: "gpu\\nrm -r"', "line 2: partition: 'gpu\\nrm -r' should be one line of text"),
]


@pytest.mark.parametrize(("before", "after", "expected"), BROKEN)
def test_a_mistake_names_its_line_and_what_would_be_right(tmp_path, before, after, expected):
    with pytest.raises(RecipeError) as refused:
        site_of(tmp_path, WHOLE.replace(before, after))
    (problem,) = refused.value.problems
    assert str(problem).startswith(expected)
    assert refused.value.exit_status == 2
