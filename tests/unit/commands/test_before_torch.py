"""What the verbs that need torch say before they import it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from typer.testing import CliRunner
from comt_cli.app import app
from comt_cli.training import hardware

hardware.cuda_names = lambda: ()
said = []
for arguments in json.load(sys.stdin):
    error = CliRunner().invoke(app, arguments).exception
    said.append([getattr(error, "exit_status", None), getattr(error, "message", repr(error)), "torch" in sys.modules])
print(json.dumps(said))
"""

NOWHERE = "nowhere/at/all.pt"
WRONG = {
    "generate": (["generate", NOWHERE, "--prompt", "A"], "there is no model nowhere/at/all.pt"),
    "analyze-gates": (["analyze-gates", NOWHERE], "there is no model"),
    "plot-gradients": (["plot-gradients", "empty"], "is not a run directory"),
    "plot-images": (["plot-images", "glyphs10", "--size", "3"], "size"),
    "translate of no file": (["translate", "owner/model", "-i", "gone"], "--input gone cannot be read"),
    "translate of latin1": (["translate", "owner/model", "-i", "latin"], "latin is not UTF-8 text (line 2)"),
    "translate onto itself": (["translate", "owner/model", "-i", "plain", "-o", "plain"], "the output plain would"),
    "caption of no picture": (["caption", "owner/model", "plain"], "cannot read the image plain: it is not a picture"),
    "caption of no features": (["caption", "owner/model", "gone.npy"], "gone.npy: its features cannot be read: No"),
    "average": (["average", NOWHERE], "there is no run"),
    "evaluate": (["evaluate", "empty"], "is not a run directory"),
    "export over another": (["export", "owner/model", "unfinished"], "is not empty"),
    "diagnose": (["diagnose", "--depths", "deep"], "--depths deep"),
    "bench": (["bench", "step", "--device", "cuda:3"], "0 CUDA devices are visible"),
    "bench step": (["bench", "step", "--variants", "nonsense"], "no variant 'nonsense'"),
    "show": (["show", "comt/table3", "--device", "cuda"], "0 CUDA devices are visible"),
    "train-lm": (["train-lm", "--recipe", "comt/table3", "--device", "cuda"], "0 CUDA devices are visible"),
    "train-lm anew": (
        ["train-lm", "--recipe", "comt/table3", "--gpus", "3", "--fresh"],
        "cannot be divided evenly among 3 processes",
    ),
    "train-resnet": (["train-resnet", "--recipe", "comt/table1", "--device", "gpu"], "there is no such device"),
    "reproduce": (["reproduce", "--device", "cuda:1"], "0 CUDA devices are visible"),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> dict[str, tuple]:
    """What each of the commands said, all typed into one process that has not imported torch."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "empty").mkdir()
    (folder / "unfinished").mkdir()
    (folder / "plain").write_text("a line\n")
    (folder / "latin").write_bytes(b"a\ngr\xfcn\n")
    (folder / "unfinished" / "spec.json").write_text("{}")
    typed = json.dumps([arguments for arguments, _ in WRONG.values()])
    program = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(program, input=typed, capture_output=True, text=True, cwd=folder, check=True)
    return dict(zip(WRONG, map(tuple, json.loads(done.stdout)), strict=True))


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_does_not_wait_for_torch(said, case):
    status, message, imported = said[case]
    assert WRONG[case][1] in message
    assert status == 2
    assert not imported
