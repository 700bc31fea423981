"""The site file of `--slurm`: what it may say, and every mistake with its line and the words that mend it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.campaign.slurm_site import Site, minutes, read_site
from comt_cli.recipe.problems import RecipeError

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
sbatch: {mail-type: END, exclusive: true, nice: 100}
setup:
  - module load cuda
  - source /shared/venv/bin/activate
warning: 300
requeues: 20
"""


def site_of(tmp_path: Path, text: str) -> Site:
    path = tmp_path / "site.yaml"
    path.write_text(text, encoding="utf-8")
    return read_site(path)


def test_everything_that_it_may_say(tmp_path):
    site = site_of(tmp_path, WHOLE)
    assert site.setup == ("module load cuda", "source /shared/venv/bin/activate")
    assert site.sbatch == {"mail-type": "END", "exclusive": True, "nice": 100}
    assert (site.partition, site.memory, site.constraint, site.requeues) == ("gpu", "64G", "a100|h100", 20)
    assert (site.minutes, site.processes) == (720, 2)


def test_only_the_time_must_be_said(tmp_path):
    site = site_of(tmp_path, "time: 90\n")
    assert (site.minutes, site.processes, site.warning) == (90, 1, 120)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("00:30:00", 30), ("12:00:00", 720), ("100:00:30", 6001), ("2-00", 2880), ("1-06:30", 1830), ("1-00:00:01", 1441)],
)
def test_times_as_slurm_writes_them(text, expected):
    assert minutes(text) == expected


@given(st.integers(0, 30), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_all_ways_to_write_a_time_agree(days, hours, minute, second):
    seconds = ((days * 24 + hours) * 60 + minute) * 60 + second
    for text in (f"{days}-{hours}:{minute:02}:{second:02}", f"{days * 24 + hours}:{minute:02}:{second:02}"):
        assert minutes(text) * 60 - seconds in range(60)


BROKEN = [
    ("partition: gpu", "partion: gpu", "line 2: partion: unknown key; did you mean partition?"),
    ("time: 12:00:00\n", "", "time: is missing"),
    ("gpus: 2", "gpus: two", "line 4: gpus: "),
    ("12:00:00", "12:00", "line 3: time: '12:00' is not a time"),
    ("12:00:00", "1:70:00", "line 3: time: '1:70:00' is not a time"),
    ("12:00:00", "00:00:00", "line 3: time: should be more than no time at all"),
    ("12:00:00", "00:05:00", "line 14: warning: 300 seconds are all of the time that a job has"),
    ("64G", "64 GB", "line 6: memory: '64 GB' is not an amount of memory"),
    ("mail-type: END", "mem: 1G", "line 10: sbatch: mem is said with the key memory"),
    ("mail-type: END", "gpus-per-task: 1", "line 10: sbatch: gpus-per-task is said with the key gpus"),
    ("mail-type: END", "no-requeue: true", "line 10: sbatch: no-requeue is said with the key requeues"),
    ("mail-type: END", "output: here", "line 10: sbatch: output is decided by comt"),
    ("mail-type: END", "--nice: 3", "line 10: sbatch: '--nice' is no long option of sbatch"),
    ("mail-type: END", "exclude: [a, b]", "line 10: sbatch.exclude: "),
    ("module load cuda", '"a\\nb"', "line 12: setup[0]: should be one line of text"),
    ("partition: gpu", 'partition: "gpu\\nrm -r"', "line 2: partition: should be one line of text"),
    ("qos: high", "qos: !!python/name:os.system x", "line 8: a tag is not allowed"),
    ("qos: high", "gpus: 3", "line 8: gpus: stands twice, first on line 4"),
]


@pytest.mark.parametrize(("before", "after", "expected"), BROKEN)
def test_a_mistake_names_its_line_and_what_would_be_right(tmp_path, before, after, expected):
    with pytest.raises(RecipeError) as refused:
        site_of(tmp_path, WHOLE.replace(before, after))
    (problem,) = refused.value.problems
    assert str(problem).startswith(expected)
    assert refused.value.exit_status == 2


def test_all_mistakes_come_at_once(tmp_path):
    with pytest.raises(RecipeError) as refused:
        site_of(tmp_path, "time: soon\ncpu: 3\nmemory: much\n")
    assert [problem.line for problem in refused.value.problems] == [1, 2, 3]


def test_what_is_no_group_of_keys_or_no_file_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="should be a group of keys"):
        site_of(tmp_path, "- time: 5")
    with pytest.raises(RecipeError, match="cannot be read"):
        read_site(tmp_path / "none.yaml")
