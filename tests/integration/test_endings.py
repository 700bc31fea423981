"""Processes that train together and die: the parent says which, and how."""

from __future__ import annotations

import os
import signal

import pytest
from worlds import run_together

from comt_cli.campaign.group import exit_text, exit_texts


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (7, "ended with status 7"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGKILL, "was killed by SIGKILL, as the system does where memory runs out"),
        (-250, "was killed by signal 250"),
        (None, "has not ended"),
    ],
)
def test_a_death_is_told_by_its_status_or_signal(code, said):
    assert exit_text(code) == said


def test_the_first_to_fail_is_told_first():
    expected = "process 1 of 2 was killed by SIGSEGV; then process 0 of 2 ended with status 1"
    assert exit_texts([1, -11], [1, 0]) == expected


def die_alone(rank: int) -> None:
    if rank == 1:
        os.write(2, b"the last word\n")
        os.kill(os.getpid(), signal.SIGBUS)


def test_the_suites_own_worlds_say_it(nursery):
    with pytest.raises(pytest.fail.Exception, match=r"(?s)the last word.*process 1 of 2 was killed by SIGBUS"):
        run_together(nursery, 2, die_alone)
