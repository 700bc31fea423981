"""The site file of `--slurm`; which runs become jobs, what a fake Slurm is asked for, and what is said of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from tiny_runs import tiny_spec

from comt_cli.campaign.slurm import submission
from comt_cli.campaign.slurm.jobs import job_of, job_standings
from comt_cli.campaign.slurm.site import Site, minutes, read_site
from comt_cli.campaign.slurm.submission import TrainJob, begin_anew, submit
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
nodes: 2
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
array_size: 500
at_once: 4
"""


def site_of(tmp_path: Path, text: str) -> Site:
    path = tmp_path / "site.yaml"
    path.write_text(text, encoding="utf-8")
    return read_site(path)


def test_sbatch_is_given_what_the_site_file_says(slurm, specs, runs, tmp_path):
    site = site_of(tmp_path, WHOLE)
    assert numbers(specs[:1], runs, site) == [("1", True)]
    assert not any("--array" in line for line in slurm.script("1")), "a single run is a job"
    script = slurm.script("1")
    options = {line.removeprefix("#SBATCH ") for line in script if line.startswith("#SBATCH")}
    logs = runs.resolve() / "slurm" / specs[0].request
    assert {
        *(f"--job-name=comt-{specs[0].request}", f"--output={logs}/%j_0_log.out", "--nodes=2", "--ntasks-per-node=2"),
        *("--time=720", "--partition=gpu", "--gpus-per-node=2", "--cpus-per-task=8", "--mem=64G", "--account=mine"),
        *("--qos=high", "--constraint='a100|h100'", "--mail-type=END", "--exclusive", "--signal=USR2@300"),
        *("--requeue", "--open-mode=append"),
    } <= options
    assert not any("oversubscribe" in option for option in options)
    begin = script.index("export OMP_NUM_THREADS=8")  # two processes share the job's processors
    assert script[begin + 1 : begin + 3] == ["module load cuda", "export A='b c'"]
    (command,) = (line for line in script if line.startswith("srun"))
    for option in ("--cpus-per-task=8", "--kill-on-bad-exit=1", f"--output={logs}/%j_0_log.out"):
        assert option in command.split()
    assert script.index(command) > begin
    numbers(specs[1:], runs)
    for option in ("--partition", "--gpus", "--mem", "--account", "--qos", "--constraint"):
        assert option not in "\n".join(slurm.script("2")), "what the site does not say sbatch is not given"


def test_nodes_without_gpus_have_one_process_each(slurm, specs, runs):
    numbers(specs[:1], runs, Site(time=60, nodes=2, cpus=8))
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1", "#SBATCH --cpus-per-task=8"} <= set(slurm.script("1"))
    assert "export OMP_NUM_THREADS=8" in slurm.script("1")


def test_what_the_processes_of_a_job_cannot_do_is_refused_before_it_is_submitted(slurm, specs, runs):
    site = Site(time=60, nodes=3, gpus=3)
    with pytest.raises(UserError, match=r"a batch of \d+ rows cannot be divided evenly among 9 processes"):
        numbers(specs, runs, site)
    with pytest.raises(UserError, match="--device cuda:0 names one device, but there are 9 processes"):
        next(submit(specs, runs, "cuda:0", site))
    assert not slurm.lines()
    assert not runs.exists()


def test_a_run_is_submitted_once(slurm, specs, runs):
    same = specs[0].model_copy(update={"table": "another"})
    assert numbers([specs[0], same], runs) == [("1", True)]
    assert numbers([same, *specs], runs) == [("1", False), ("2", True)]
    assert job_of(runs, specs[0]).log == runs / "slurm" / specs[0].request / "1_0_log.out"
    assert words(runs, specs) == ["queued (job 1)", "queued (job 2)"]
    slurm.put("1", "RUNNING", "node7")
    slurm.put("2", "REQUEUED")
    assert words(runs, specs) == ["running (job 1 on node7)", "queued (job 2)"]
    assert numbers(specs, runs) == [("1", False), ("2", False)]
    assert len(slurm.lines()) == 2
    assert all(RunDirectory.of(runs, spec).shown.is_symlink() for spec in (*specs, same))


def test_runs_are_tasks_of_an_array(slurm, tiny_corpus, runs):
    every = [tiny_spec(tiny_corpus, seed=seed) for seed in range(1, 8)]
    specs = [spec.model_copy(update={"row": f"row-{spec.seed % 2}"}) for spec in every]
    slurm.takes_arrays_of(3)
    assert numbers(specs[:1], runs) == [("1", True)]
    assert numbers(specs, runs, Site(time=60, at_once=2)) == [
        *[("1", False), ("2_0", True), ("2_1", True), ("2_2", True), ("3_0", True), ("3_1", True), ("3_2", True)]
    ]
    logs = runs.resolve() / "slurm" / specs[1].request
    assert {
        *("#SBATCH --array=0-2%2", f"#SBATCH --output={logs}/%A_%a_0_log.out"),
        *(f"#SBATCH --job-name=comt-{specs[1].request}", "#SBATCH --comment=comt/tiny"),
    } <= set(slurm.script("2"))
    (command,) = (line for line in slurm.script("2") if line.startswith("srun"))
    assert f"--output={logs}/%A_%a_0_log.out" in command.split()
    assert {path.name for path in logs.glob("2_*.pkl")} == {f"2_{task}_submitted.pkl" for task in range(3)}
    slurm.put("2_1", "RUNNING", "node7")
    slurm.forget("3_2")
    states = words(runs, specs)
    assert states[1:4] == ["queued (job 2_0)", "running (job 2_1 on node7)", "queued (job 2_2)"]
    assert states[6].startswith("failed (job 3_2, see ")
    assert numbers(specs, runs)[6] == ("4", True)
    assert len(slurm.lines()) == 7


def test_the_site_file_may_state_the_size_of_arrays(slurm, specs, runs, monkeypatch):
    monkeypatch.setattr(submission, "max_array_size", None)  # which is not asked then
    slurm.takes_arrays_of(1)
    assert numbers(specs, runs, Site(time=60, array_size=1)) == [("1", True), ("2", True)]
    slurm.forget("1")
    slurm.forget("2")
    with pytest.raises(UserError, match=r"Slurm refused a job: .* Invalid job array specification"):
        numbers(specs, runs, Site(time=60, array_size=2))


@pytest.mark.parametrize(("said", "size"), [(1001, 1001), (1, 1), (0, 1)])  # 0: the cluster has no arrays
def test_the_cluster_is_asked_for_the_size_of_arrays(slurm, said, size):
    slurm.takes_arrays_of(said)
    assert submission.max_array_size() == size
    slurm.falls_silent()
    with pytest.raises(UserError, match=r"does not say the cluster's MaxArraySize: .* Unable to contact") as refused:
        submission.max_array_size()
    assert refused.value.hint == "State it in the site file: array_size: 1000"


def test_a_job_of_an_earlier_version_is_found(slurm, specs, runs):
    numbers(specs[:1], runs)
    write_json(runs / "slurm" / specs[0].request / "job.json", {"job": "1"})
    assert words(runs, specs) == ["queued (job 1)"]


def test_a_job_that_ended_without_a_result_has_failed_and_is_submitted_anew(slurm, specs, runs):
    numbers(specs, runs)
    slurm.forget("1_0")
    logs = runs / "slurm" / specs[0].request
    assert words(runs, specs) == [f"failed (job 1_0, see {logs}/1_0_0_log.out)", "queued (job 1_1)"]
    assert numbers(specs, runs) == [("1_1", False), ("2", True)]
    slurm.forget("1_1")
    assert words(runs, specs) == ["queued (job 2)", f"failed (job 1_1, see {logs}/1_1_0_log.out)"]
    slurm.forget("2")
    assert numbers(specs, runs) == [("3_0", True), ("3_1", True)]


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
    submissions = submit(specs, runs, None, Site(time=60, array_size=1))
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
    assert refused.value.hint == "End their jobs first: scancel 1_0 1_1"


@pytest.fixture
def task(monkeypatch) -> None:
    """This process is a job's only one."""
    monkeypatch.setenv("COMT_TRACK", "")
    for name, value in {"EXECUTOR": "slurm", "FOLDER": "."}.items():
        monkeypatch.setenv(f"SUBMITIT_{name}", value)
    monkeypatch.setenv("SLURM_JOB_ID", "45001")


def test_a_job_that_cannot_train_says_why_and_ends_with_its_status(task, specs, runs, capsys):
    with pytest.raises(SystemExit) as ended:
        TrainJob()(specs[0].model_dump(mode="json"), str(runs), "cpu:3000:1", [])
    assert ended.value.code == 2
    assert "comt: --device cpu:3000:1: there is no such device here" in capsys.readouterr().err


def test_the_processes_of_a_job_are_those_of_one_run(task, specs, runs, capsys, monkeypatch):
    said = {"SLURM_NTASKS": 6, "SLURM_PROCID": 4, "SLURM_LOCALID": 1, "SLURM_JOB_NODELIST": "gpu[07-09]"}
    for name, value in said.items():
        monkeypatch.setenv(name, str(value))
    variables = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in variables:
        monkeypatch.setenv(name, "")  # so that what the job sets is undone
    ends = []
    monkeypatch.setattr(submission, "end_process", ends.append)
    with contextlib.suppress(SystemExit):
        TrainJob()(specs[0].model_dump(mode="json"), str(runs), "cpu:0", [])
    assert ends == [2], "threads of the group may outlive the interpreter"
    assert "comt: --device cpu:0 names one device, but there are 6 processes" in capsys.readouterr().err
    assert [os.environ[name] for name in variables] == ["4", "1", "6", "gpu07", "15001"]


def test_times_are_as_slurm_writes_them(tmp_path):
    site = site_of(tmp_path, "time: 90\n")
    assert (site.time, site.nodes, site.processes, site.warning) == (90, 1, 1, 120)
    times = {"00:30:00": 30, "100:00:30": 6001, "2-00": 2880, "1-06:30": 1830, "1-00:00:01": 1441}
    assert {text: minutes(text) for text in times} == times


BROKEN = [
    ("partition: gpu", "partion: gpu", "line 2: partion: unknown key; did you mean partition?"),
    ("time: 12:00:00\n", "", "time: is missing"),
    ("12:00:00", "12:00", "line 3: time: '12:00' is not a time"),
    ("12:00:00", "00:05:00", "line 15: warning: 300 seconds are not less than the time of a job"),
    ("64G", "64 GB", "line 7: memory: '64 GB' is not an amount of memory"),
    ("nodes: 2", "nodes: 0", "line 4: nodes: 0 does not fit: "),
    ("array_size: 500", "array_size: 0", "line 17: array_size: 0 does not fit: "),
    ("at_once: 4", "at_once: 0", "line 18: at_once: 0 does not fit: "),
    ("mail-type: END", "array: 0-3", "line 11: sbatch: array has its own key in the site file, or is set by comt"),
    ("mail-type: END", "nodes: 4", "line 11: sbatch: nodes has its own key in the site file, or is set by comt"),
    ("mail-type: END", "gpus-per-task: 1", "line 11: sbatch: gpus-per-task "),
    ("mail-type: END", "output: here", "line 11: sbatch: output "),
    ("mail-type: END", "--nice: 3", "line 11: sbatch: '--nice' is not a long option of sbatch"),
    ("partition: gpu", 'partition: "gpu\\nrm -r"', "line 2: partition: 'gpu\\nrm -r' should be one line of text"),
]


@pytest.mark.parametrize(("before", "after", "expected"), BROKEN)
def test_a_mistake_names_its_line_and_what_would_be_right(tmp_path, before, after, expected):
    with pytest.raises(RecipeError) as refused:
        site_of(tmp_path, WHOLE.replace(before, after))
    (problem,) = refused.value.problems
    assert str(problem).startswith(expected)
    assert refused.value.exit_status == 2
