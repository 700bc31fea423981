"""Processes that train together and die: the parent says which, how, and what it said last."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal

import pytest
from worlds import run_together

from comt_cli.campaign.group import LINES, StandardError, exit_text, exit_texts, redirect_standard_error


def die(writer, how: str) -> None:
    redirect_standard_error(writer)
    for number in range(3 * LINES):
        os.write(2, f"line {number}\n".encode())
    if how == "fault":
        faulthandler._sigsegv()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(7)


@pytest.mark.parametrize(
    ("how", "said", "last"),
    [
        ("fault", "was killed by SIGSEGV", "in die"),
        ("kill", "was killed by SIGKILL, as the system does where memory runs out", f"line {3 * LINES - 1}"),
        ("exit", "ended with status 7", f"line {3 * LINES - 1}"),
    ],
)
def test_a_death_is_told_with_its_last_words(how, said, last, capfd):
    context = multiprocessing.get_context("forkserver")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=die, args=(writer, how))
    process.start()
    writer.close()
    output = StandardError(reader)
    process.join()
    assert exit_text(process.exitcode) == said
    lines = output.last_lines()
    assert 0 < len(lines) <= LINES
    assert any(last in line for line in lines)
    assert "line 0\n" in capfd.readouterr().err, "it is also seen as it comes"


def test_the_first_to_fail_is_told_first():
    assert (
        exit_texts([1, -11], [1, 0]) == "process 1 of 2 was killed by SIGSEGV; then process 0 of 2 ended with status 1"
    )
    assert exit_texts([0, -250], [1]) == "process 1 of 2 was killed by signal 250"


def die_alone(rank: int) -> None:
    if rank == 1:
        os.write(2, b"the last word\n")
        os.kill(os.getpid(), signal.SIGBUS)


def test_the_suites_own_worlds_say_it(nursery):
    with pytest.raises(pytest.fail.Exception, match=r"(?s)the last word.*process 1 of 2 was killed by SIGBUS"):
        run_together(nursery, 2, die_alone)
