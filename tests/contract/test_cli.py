"""The command line as a shell sees it: quick, without torch where it is not needed, and completed by the shell."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from one_process import answers
from typer.testing import CliRunner

from comt_cli.app import app, main

ROOT = Path(__file__).resolve().parents[2]
COMT = Path(sys.executable).with_name("comt")


def leaves(group, path=()):
    """Every verb that does something, by its words: ("show",), ("bench", "step")."""
    for name in group.commands:
        _, command, _ = group.resolve_command(None, [name])
        yield from leaves(command, (*path, name)) if hasattr(command, "commands") else [((*path, name), command)]


VERBS = {" ".join(path): command for path, command in leaves(typer.main.get_command(app))}
HEAVY = ("torch", "torchvision", "triton", "transformers", "datasets", "pandas", "matplotlib", "numpy", "scipy")

HELPS = [["--help"], ["--version"], *([*verb.split(), "--help"] for verb in VERBS)]


@pytest.fixture(scope="module")
def helps(tmp_path_factory) -> dict[str, tuple[int, str, set[str]]]:
    """In the order of `HELPS`: the first that imports something heavy is the first whose test fails."""
    found = answers(HELPS, tmp_path_factory.mktemp("helps"))
    return {" ".join(arguments): each for arguments, each in zip(HELPS, found, strict=True)}


@pytest.mark.parametrize("arguments", [" ".join(arguments) for arguments in HELPS])
def test_help_imports_nothing_heavy(arguments, helps):
    status, _, modules = helps[arguments]
    assert status == 0
    assert modules & set(HEAVY) == set()
    if arguments in ("--help", "--version"):  # a verb's own options are read with pydantic, by typer
        assert modules & {"pydantic", "ruamel.yaml"} == set()


def test_reading_needs_no_torch(tmp_path):
    lines = {"recipes": 0, "status": 0, "report table3.yaml": 1}  # nothing to be written ended yet
    found = answers([line.split() for line in lines], tmp_path)
    assert [status for status, *_ in found] == list(lines.values())
    assert not any({"torch", "scipy"} & modules for *_, modules in found), (
        "scipy is for differences, and there are none"
    )


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_explains_itself(verb):
    assert VERBS[verb].help
    assert all(getattr(parameter, "help", None) for parameter in VERBS[verb].params), "an option without help"


@pytest.mark.parametrize(("commit", "said"), [(None, ""), ("12ab-dirty", " (commit 12ab-dirty)")])
def test_the_version_is_the_packages_and_names_the_commit(commit, said, monkeypatch):
    monkeypatch.setattr("comt_cli.commit.git_commit", lambda: commit)
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert CliRunner().invoke(app, ["--version"]).output == f"{version}{said}\n"


@pytest.mark.parametrize(("line", "status"), [("recipes", 0), ("show nonesuch", 2), ("report table3", 1)])
def test_closed_streams_change_no_status(line, status, tmp_path):
    command = f'exec "{sys.executable}" -m comt_cli {line} >&- 2>&- <&-'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert "Traceback" not in done.stderr


UNUSABLE = [
    "show {}.yaml", "status {}", "status --runs {}", "runs --runs {}", "generate {}", "average {}", "export {} out",
    "analyze-gates {}", "plot-gradients {}", "report --html --results {}", "report --runs {}", "score {} {}",
    "bench page --results {}", "train-lm --recipe {}.yaml", "train-lm --recipe table3 --runs {} --dry-run",
    "caption x {}.png",
]  # fmt: skip


def test_what_may_not_be_read_is_told(tmp_path):
    """Root may read everything, unless it gives its capabilities up."""
    prefix = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.geteuid() == 0 else []
    if prefix and shutil.which("setpriv") is None:
        pytest.skip("root may read everything, and there is no setpriv")
    secret = tmp_path / "secret"
    secret.mkdir(mode=0)
    try:
        told = answers([line.replace("{}", "secret/x").split() for line in UNUSABLE], tmp_path, prefix=prefix)
    finally:
        secret.chmod(0o700)
    assert {line: status for line, (status, *_) in zip(UNUSABLE, told, strict=True)} == dict.fromkeys(UNUSABLE, 2)
    assert [said for _, said, _ in told if "Permission denied" not in said] == []


@pytest.mark.parametrize("start", [[sys.executable, "-m", "comt_cli"], [COMT]])
def test_an_interrupt_while_modules_are_imported_leaves_no_traceback(start, tmp_path):
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [*start, "recipes"], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # it is ignored where the tests run behind a &
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_results_that_cannot_be_written_are_told_before_a_run_is_started(tmp_path):
    (tmp_path / "file").write_text("")
    words = ["train-lm", "--recipe", "table3", "--rows", "pre-ln", "--results", "file/x"]
    ((status, said, _),) = answers([words], tmp_path)
    assert status == 2
    assert "--results: file/x/smoke/comt cannot be written" in said
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def completions(tmp_path, monkeypatch, capsys):
    """`completions(line)`: what bash is offered after it. In this process: each shell's own way in is one test's."""
    monkeypatch.chdir(tmp_path)

    def offered(line: str) -> set[str]:
        for name, value in bash(line).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["comt"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return set(capsys.readouterr().out.split())

    return offered


def bash(line: str) -> dict[str, str]:
    """The variables with which bash asks for what fits after `line`."""
    return {"_COMT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("comt tr", {"train-lm"}),
        ("comt show ta", {"table3.yaml"}),
        ("comt train-lm --scale s", {"smoke", "small"}),
        ("comt show sas/table4", {"sas/table4.yaml"}),
        ("comt train-lm --recipe table3 --rows pre-ln,pre", {"pre-ln,pre-ln+comt", "pre-ln,pre-ln+transponder"}),
        ("comt show table1 --rows sl", {"sliding-window"}),  # the recipe stands before the option, without a name
        ("comt train-lm --recipe table3 --scale paper --columns c4/1", {"c4/130m", "c4/1b"}),
        ("comt train-resnet --recipe table1 --set train.mi", {"train.milestones=", "train.min_lr_ratio="}),
        ("comt show table3 --also wide=tr", {"wide=transponder", "wide=transponder-path"}),
        ("comt train-lm --track t", {"tensorboard"}),
        ("comt runs --state done,di", {"done,diverged"}),
        ("comt analyze-gates 0123 --site d", {"down_proj"}),
        ("comt score a b --metric bleu,ch", {"bleu,chrf"}),
        ("comt generate tab", {"table3:"}),
        ("comt generate 0123", {"0123456789ab"}),
    ],
)
def test_the_shell_completes(line, offered, tmp_path, completions):
    write_run(tmp_path)
    assert offered <= completions(line)


def test_a_recipe_that_is_broken_completes_nothing_and_disturbs_nobody(tmp_path, completions):
    (tmp_path / "bad.yaml").write_text("rows: [")
    assert completions("comt show bad.yaml --rows p") == set()
    (tmp_path / "own.yaml").write_text("scales: {nano: {description: x}, smoke: {description: x}}")
    assert completions("comt train-lm own.yaml --scale n") == {"nano"}
    (tmp_path / "odd.yaml").write_text("rows: 3\nscales: {smoke: 4}\ncolumns: [a]")
    assert completions("comt show odd.yaml --columns ") == set()
    for line in ("show nonesuch", "train-lm --set train.milest", "train-lm --set train.steps=1"):
        assert completions(f"comt {line}") == set(), "only what fits is offered"


PLACE = {"paper": "comt", "table": "table3", "column": "python-docs/tiny", "scale": "smoke"}
RUN = {**PLACE, "row": "pre-ln+comt", "seed": 7}


def write_run(folder: Path) -> None:
    path = folder / "runs/by-id/0123456789ab"
    path.mkdir(parents=True)
    (path / "spec.json").write_text(json.dumps(RUN))


def test_other_shells_get_whole_selectors(tmp_path):
    write_run(tmp_path)
    asked = {"_COMT_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    environment = {**os.environ, **asked, "_TYPER_COMPLETE_ARGS": "comt generate table3:pre"}
    done = subprocess.run([COMT], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["table3:pre-ln+comt:python-docs/tiny:7"]


COMPLETES_WITHIN_SECONDS = 0.5 * 2
"""Twice what the project promises: of the processor's time on a machine that others keep busy, too."""


@pytest.mark.parametrize("line", ["comt train-lm --set train.", "comt show table3 --also c", "comt generate 0"])
def test_completion_imports_no_torch_and_keeps_nobody_waiting(line, tmp_path):
    code = (
        "import os, sys\n"
        "from comt_cli.__main__ import main\n"
        "sys.argv = ['comt']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = [name for name in ('torch', 'numpy', 'pandas') if name in sys.modules]\n"
        "print(heavy, sum(os.times()[:2]), file=sys.stderr)\n"
    )
    environment = os.environ | bash(line)
    seconds = [10.0]
    while min(seconds) >= COMPLETES_WITHIN_SECONDS and len(seconds) < 4:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        heavy, _, took = done.stderr.strip().rpartition(" ")
        assert heavy == "[]"
        seconds.append(float(took))
    assert min(seconds) < COMPLETES_WITHIN_SECONDS
