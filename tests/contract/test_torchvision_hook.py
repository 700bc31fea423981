"""A script that imports transformers works, before comt and after it, whatever torchvision the environment has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torchvision

from comt_cli import torchvision_hook

ROOT = Path(__file__).resolve().parents[2]
USES = "from transformers import LlamaForCausalLM; from torchvision import datasets; print(LlamaForCausalLM.__name__)"


def test_scripts_that_import_transformers(tmp_path, monkeypatch):
    """Before comt, in an environment that `make` has set up; after it, in any."""
    monkeypatch.setattr(torchvision_hook, "loads", lambda folder: False)
    torchvision_hook.install(tmp_path)
    before = f"import site; site.addsitedir({str(tmp_path)!r}); {USES}; import comt_cli"
    after = f"import comt_cli; {USES}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for code in (before, after)
    ]
    for process in started:
        output, errors = process.communicate(timeout=200)
        assert (process.returncode, output) == (0, "LlamaForCausalLM\n"), errors


def test_an_environment_whose_torchvision_loads_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision_hook, "loads", lambda folder: folder == str(Path(torchvision.__file__).parent))
    torchvision_hook.install(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_make_has_python_start_with_the_hook():
    printed = subprocess.run(
        ["make", "-n", "-B", "-C", str(ROOT), "setup"], capture_output=True, text=True, check=True
    ).stdout
    assert "torchvision_hook.install()" in printed
