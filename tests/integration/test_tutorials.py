"""The tutorials run as they stand, each in a fresh shell that stands in a copy of the clone, at toy size.

Of a page these are run, in order: blocks of Python, which are saved under the path that their first line names, and
blocks of `bash`. A block of `text` is what the one before has printed, but for numbers and blanks; `...` stands for
anything. Blocks of `console` are not run. `TOY` has what is replaced, and nothing else is changed.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import comt_cli

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

ROOT = Path(comt_cli.__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
TOY = {
    "your-gate": {"STEPS = 300": "STEPS = 3"},
    "comt-in-smollm2": {
        'MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"': 'MODEL = "tiny"',
        "STEPS = 50": "STEPS = 2",
        "LENGTH = 128": "LENGTH = 32",
    },
    "task-evaluation": {"steps=240": "steps=2", "steps-240": "steps-2", "--limit 1000": "--limit 4"},
}
BLOCK = re.compile(r"^```(python|bash|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
END = "== the end of block =="
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?(?: (?:ms|s|min|h|[kM]|[KMG]iB)\b)?")
SHOWN = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def blocks_of(page: Path, toy: dict[str, str]) -> list[tuple[str, str]]:
    """Language and text of every block, with toy sizes."""
    text = page.read_text(encoding="utf-8")
    for real, small in toy.items():
        assert real in text, f"{page.name} does not say {real}"
        text = text.replace(real, small)
    return [match.groups() for match in BLOCK.finditer(text)]


def copy_of_clone(folder: Path) -> None:
    """Links to all of the package and the recipes, in folders to which files can be added; and commands that use it."""
    for source in ("comt_cli", "comt_cli/layers", "comt_cli/methods", "recipes"):
        (folder / source).unlink(missing_ok=True)
        (folder / source).mkdir()
        for path in (ROOT / source).iterdir():
            if path.name != "__pycache__":
                (folder / source / path.name).symlink_to(path)
    commands = folder / "bin"
    commands.mkdir()
    for name, given in {"python": "", "comt": "-m comt_cli", "lm_eval": "-m lm_eval"}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {given} "$@"\n', encoding="utf-8")
        (commands / name).chmod(0o755)
    # As in the environment that `make` sets up, for scripts that import transformers first.
    (folder / "sitecustomize.py").write_text("import comt_cli\n", encoding="utf-8")


def run_page(page: Path, folder: Path, toy: dict[str, str]) -> list[tuple[str, str]]:
    """What every block of `text` says, and what was printed."""
    copy_of_clone(folder)
    script, shown = ["set -euo pipefail"], []
    blocks = blocks_of(page, toy)
    for language, text in blocks:
        if language == "python":
            path = folder / re.match(r"# (\S+\.py)\n", text)[1]
            assert not path.exists()
            path.write_text(text, encoding="utf-8")
        elif language == "bash":
            script.append(text + f"echo; echo '{END}'")
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "120",
    }
    command = ["bash", "-c", "\n".join(script)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Warning" not in done.stderr, done.stderr
    printed = iter(done.stdout.split(END))
    for language, text in blocks:
        if language == "bash":
            last = next(printed).strip()
        elif language == "text":
            shown.append((text, last))
    return shown


def without_numbers(text: str) -> str:
    """Without ids, numbers and their units, and the widths of rules."""
    return re.sub(r"--+", "--", NUMBER.sub("#", re.sub(r"\b[0-9a-f]{12}\b", "#", text)))


def test_every_tutorial_has_a_toy_size():
    assert [page.stem for page in PAGES] == sorted(TOY)


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_and_prints_what_it_says(page, tmp_path):
    if page.stem == "comt-in-smollm2":
        write_tiny_model(tmp_path / "tiny")
    shown = run_page(page, tmp_path, TOY[page.stem])
    assert shown
    for said, printed in shown:
        wanted, got = without_numbers(said), without_numbers(printed) + "\n"
        assert doctest.OutputChecker().check_output(wanted, got, SHOWN), f"the page says\n{said}\nprinted is\n{printed}"


def write_tiny_model(folder: Path) -> None:
    """A LLaMA of transformers with a tokenizer of letters, in the place of SmolLM2."""
    import tokenizers
    import torch
    import transformers

    letters = [chr(code) for code in range(32, 127)]
    vocabulary = {piece: number for number, piece in enumerate(["<s>", "</s>", "<unk>", "\n", *letters])}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "<unk>"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    own.decoder = tokenizers.decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=own, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=0, eos_token_id=1, pad_token_id=1, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
