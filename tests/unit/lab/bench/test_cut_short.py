"""`comt bench` that ends early, by a signal or for want of time: what whole rounds have measured is written."""

from __future__ import annotations

import csv
import re
import signal
from pathlib import Path

import pytest
from test_costs import RECIPE

from comt_cli.errors import RunInterrupted, UserError
from comt_cli.kernels import measurements
from comt_cli.lab.bench import gpu, rounds, stages
from comt_cli.lab.bench.limits import Deadline
from comt_cli.lab.bench.rounds import ClockStopwatch
from comt_cli.lab.bench.stages import Stage

pytestmark = pytest.mark.usefixtures("quick_figures")

VERBS = {
    "step": ("step", "--sizes", "bench", "--precision", "fp32", "--variants", "plain,comt-eager"),
    "kernels": ("kernels", "--sizes", "bench", "--dtypes", "fp32", "--ops", "modulate", "--gates", "none"),
    "products": ("kernels", "--sizes", "bench", "--dtypes", "fp32", "--gemm"),
    "decode": ("decode", "--sizes", "bench", "--batch", "1,2", "--dtypes", "fp32", "--variants", "plain,comt"),
    "translate": ("decode", "--sizes", "mt-bench", "--batch", "1,2", "--variants", "plain,sas"),
    "costs": ("costs", "what-it-costs.yaml", "--rows", "dhc"),
    "all": ("all",),
}
every_verb = pytest.mark.parametrize("arguments", VERBS.values(), ids=VERBS)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measurements, "own_folder", lambda: tmp_path / "own")
    Path("what-it-costs.yaml").write_text(RECIPE, encoding="utf-8")


class Counted:
    """Counts the turns of the first thing that is timed, whose round has so many; `act` is called when the third of its
    rounds is not whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act) -> None:
        self.turns, self.of_a_round = 0, 0
        seconds, in_turns = ClockStopwatch.seconds, rounds.in_turns

        def counted(stopwatch, part):
            self.turns += 1
            if self.turns == 2 * self.of_a_round + 1:
                act()
            return seconds(stopwatch, part)

        def told(parts, *more, **how):
            self.of_a_round = self.of_a_round or len(parts)
            yield from in_turns(parts, *more, **how)

        monkeypatch.setattr(ClockStopwatch, "seconds", counted)
        for module in ("rounds", "costs", "step_turns"):
            monkeypatch.setattr(f"comt_cli.lab.bench.{module}.in_turns", told)


def written(folder: Path) -> list[dict[str, str]]:
    (path,) = (path for path in folder.glob("*/*/*.csv") if path.parent.parent.name != "own")
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def check_rows(rows: list[dict[str, str]]) -> None:
    """Of two rounds, and no time of theirs has settled."""
    assert rows
    assert {row.get("rounds", "2") for row in rows} == {"2"}
    settled = [{value for name, value in row.items() if name.endswith("_settled")} for row in rows]
    assert all(values <= {"False", ""} and "False" in values for values in settled)


@every_verb
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal(arguments, number, bench, tmp_path, monkeypatch, capfd):
    """In the midst of the third round: nothing more is timed, and the process ends with the signal's status."""
    before = signal.getsignal(number)
    counted = Counted(monkeypatch, lambda: signal.raise_signal(number))
    result = bench(*arguments, "--rounds", "15")
    error = result.exception
    assert isinstance(error, RunInterrupted), result.output
    assert error.exit_status == 128 + number
    rows = written(tmp_path)
    check_rows(rows)
    assert f"interrupted: rows measured: {len(rows)}, those cut short not settled" in str(error)
    assert counted.turns == 2 * counted.of_a_round + 1
    assert re.search(r"cut short and not settled after 2 rounds|measured in 2 rounds", result.output)
    assert re.search(r"^wrote .*\.\{csv,md", result.output, re.MULTILINE)
    assert capfd.readouterr().err == "stopping after the part at hand; again: at once\n"
    assert signal.getsignal(number) is before


@every_verb
def test_a_signal_before_a_round_is_whole(arguments, bench, tmp_path, monkeypatch):
    seconds = ClockStopwatch.seconds

    def stopped(stopwatch, part):
        signal.raise_signal(signal.SIGINT)
        return seconds(stopwatch, part)

    monkeypatch.setattr(ClockStopwatch, "seconds", stopped)
    result = bench(*arguments)
    assert isinstance(result.exception, RunInterrupted)
    assert "nothing was measured in a whole round" in str(result.exception)
    assert not [*tmp_path.glob("*/*/*.csv")]


@every_verb
def test_seconds(arguments, bench, tmp_path, monkeypatch):
    """They are up in the midst of the third round. What is there is written, and all else left out by its name."""
    left = [60.0]
    monkeypatch.setattr(Deadline, "left", lambda _: left[0])
    counted = Counted(monkeypatch, lambda: left.__setitem__(0, 0.0))
    result = bench(*arguments, "--seconds", "60", "--rounds", "15")
    assert result.exit_code == 0, result.output
    check_rows(written(tmp_path))
    assert counted.turns == 2 * counted.of_a_round + 1
    assert re.search(r"cut short and not settled after 2 rounds|measured in 2 rounds", result.output)
    assert ("left out for want of time" in result.output) == (arguments != VERBS["step"])
    assert gpu.INCOMPLETE.search(result.output), "which comt bench gpu goes by"


@every_verb
def test_no_seconds(arguments, bench, tmp_path):
    result = bench(*arguments, "--seconds", "0")
    assert result.exit_code == 1
    assert "left out for want of time" in result.output
    assert "nothing was measured" in str(result.exception)
    assert not [*tmp_path.glob("*/*/*.csv")]


def test_one_limit_is_enough(bench):
    result = bench("all", "--minutes", "1", "--seconds", "60")
    assert isinstance(result.exception, UserError)
    assert "--minutes and --seconds limit the same" in str(result.exception)


def test_no_part_begins_after_a_signal(bench, monkeypatch):
    begun = []

    def part(go_on):
        begun.append(1)
        signal.raise_signal(signal.SIGTERM)
        yield "a line"

    monkeypatch.setattr(stages, "stages_for", lambda *_: [Stage("step", f"part {n}", 1, part) for n in range(3)])
    result = bench("all")
    assert isinstance(result.exception, RunInterrupted)
    assert begun == [1]
