"""An unfinished run whose files were damaged: it says which and what to do, and is not trained to other numbers."""

from __future__ import annotations

import re

import pytest
import torch
from tiny_runs import StopAt, Stopped, tiny_spec, train

from comt_cli.errors import UserError
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.training.events import Event, StepReport


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """What a run that was stopped has saved, by the name of its file."""
    return {}


@pytest.fixture
def stopped(tiny_corpus, tmp_path, unfinished) -> tuple[RunSpec, RunDirectory]:
    spec = tiny_spec(tiny_corpus, steps=6, save_every=2, log_every=1)
    directory = RunDirectory.of(tmp_path, spec)
    if not unfinished:
        with pytest.raises(Stopped):
            train(spec, tmp_path, listener=StopAt(4))
        unfinished.update({path.name: path.read_bytes() for path in directory.path.iterdir() if path.is_file()})
    else:
        directory.create(spec)
        for name, content in unfinished.items():
            (directory.path / name).write_bytes(content)
    return spec, directory


def test_a_flipped_bit_of_a_checkpoint_is_noticed(stopped, tmp_path):
    """torch.load compares nothing: the run would end as done, with other weights."""
    spec, directory = stopped
    content = bytearray(directory.checkpoint_file.read_bytes())
    content[len(content) // 2] ^= 1
    directory.checkpoint_file.write_bytes(content)
    with pytest.raises(UserError, match=r"checkpoint\.pt is damaged: its record .* does not fit its checksum") as told:
        train(spec, tmp_path)
    assert f"Delete {directory.checkpoint_file}" in str(told.value.hint)
    assert directory.result() is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.update(progress={}), "its progress lacks counters"),
        (lambda state: state.update(progress=[1]), "its progress lacks counters"),
        (lambda state: state["progress"].update(step=10**12), "its progress is of step 1,000,000,000,000, and"),
        (lambda state: state["progress"].update(step=True), "its progress has a wrong step"),
        (lambda state: state["progress"].update(metrics_bytes=-1), "its progress has a wrong metrics_bytes"),
        (lambda state: state["progress"].update(rows=1), "its progress has a wrong rows"),
        (lambda state: state.pop("optimizer"), "its optimizer's state cannot be restored: it has no 'optimizer'"),
        (lambda state: state["optimizer"].update(state=[]), "its optimizer's state cannot be restored"),
        (lambda state: state.pop("random"), "its random states cannot be restored: it has no 'random'"),
        (lambda state: state["random"].update(torch=torch.zeros(3)), "its random states cannot be restored"),
        (lambda state: state["model"].popitem(), "its weights cannot be restored"),
    ],
)
def test_a_checkpoint_of_other_things_is_told_by_its_part(stopped, tmp_path, change, said):
    spec, directory = stopped
    state = torch.load(directory.checkpoint_file, weights_only=True)
    change(state)
    torch.save(state, directory.checkpoint_file)
    with pytest.raises(UserError, match=re.escape(said)) as told:
        train(spec, tmp_path)
    assert str(directory.checkpoint_file) in told.value.message
    assert f"Delete {directory.checkpoint_file}" in str(told.value.hint)


class Delete:
    """Takes the metrics away from under a run."""

    def __init__(self, directory: RunDirectory, *, replace: bool) -> None:
        self.file, self.replace = directory.metrics_file, replace

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepReport) and event.step == 3:
            self.file.unlink()
            if self.replace:
                self.file.write_text("")


@pytest.mark.parametrize("replace", [False, True])
def test_metrics_that_are_deleted_while_the_run_writes_them(tiny_corpus, tmp_path, replace):
    """They went on into a file without a name, and the run ended as done with nothing to show."""
    spec = tiny_spec(tiny_corpus, steps=6, save_every=100, log_every=1)
    directory = RunDirectory.of(tmp_path, spec)
    with pytest.raises(UserError, match=r"metrics\.jsonl was deleted or replaced while the run was writing to it"):
        train(spec, tmp_path, listener=Delete(directory, replace=replace))
    assert directory.result() is None
