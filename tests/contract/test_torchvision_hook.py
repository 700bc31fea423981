"""A script that imports transformers works, before comt and after it, whatever torchvision the environment has."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from comt_cli import torchvision_hook

ROOT = Path(__file__).resolve().parents[2]
STARTS = 'import importlib.util as u; u.find_spec("comt_cli") and __import__("comt_cli")'
"""The line with which every Python of an environment of ours starts."""
USES = "from transformers import LlamaForCausalLM; from torchvision import datasets; print(LlamaForCausalLM.__name__)"


def test_scripts_that_import_transformers(tmp_path):
    """Before comt, in an environment that `make` has set up; after it, in any."""
    (tmp_path / "comt_torchvision.pth").write_text(STARTS)
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


def test_a_torchvision_whose_extension_loads_is_left_alone(monkeypatch):
    spec = importlib.util.find_spec("torchvision")
    monkeypatch.setattr(torchvision_hook, "loads", lambda folder: folder == str(Path(spec.origin).parent))
    before = [*torchvision_hook._kept]
    monkeypatch.setattr(spec.loader, "get_code", lambda name: compile("", name, "exec"))
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert torchvision_hook._kept == before


def test_make_has_python_start_with_the_hook():
    printed = subprocess.run(
        ["make", "-n", "-B", "-C", str(ROOT), "setup"], capture_output=True, text=True, check=True
    ).stdout
    assert f"echo '{STARTS}'" in printed
