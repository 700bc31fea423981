"""A wheel built from the tree is whole and works elsewhere; the files that pin versions agree with each other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINS = [line for line in CONSTRAINTS if not line.startswith("#")]
UV = [sys.executable, "-m", "uv"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    # Without isolation: hatchling is one of the tests' own packages, so that nothing is fetched.
    build = [*UV, "build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True, text=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A fresh environment with the wheel; what it depends on is lent by the tests' environment, nothing is fetched."""
    environment = tmp_path_factory.mktemp("elsewhere") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [*UV, "pip", "install", "--offline", "--no-deps", "--python", str(python), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, text=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    # A folder named in a .pth file is searched; its own .pth files (the editable install of this tree) are not read.
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return environment


def run(environment: Path, folder: Path, *command: str) -> str:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [environment / "bin" / command[0], *command[1:]]
    done = subprocess.run(words, cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_all_modules_and_recipes(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    kinds = ("*.py", "*.txt", "*.csv", "*.cpp", "*.h")  # modules, what some of them read, and kernels to be compiled
    kinds += ("*.jinja", "*.js", "*.css")  # the page of results
    kinds += ("py.typed",)  # annotations are for type checkers elsewhere, too
    modules = {path.relative_to(ROOT).as_posix() for kind in kinds for path in (ROOT / "comt_cli").rglob(kind)}
    recipes = {f"comt_cli/_recipes/{path.relative_to(ROOT / 'recipes')}" for path in (ROOT / "recipes").rglob("*.yaml")}
    assert modules - names == set()
    assert "comt_cli/py.typed" in names
    assert recipes
    assert recipes - names == set()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    strangers = {name for name in names if not name.startswith(("comt_cli/", "comt-"))}
    assert strangers == set()


def test_the_installed_program_is_whole(installed, tmp_path):
    """It is not this tree, and finds its recipes and measurements."""
    code = (
        "import comt_cli; from comt_cli.methods import catalogue;"
        "from comt_cli.kernels.measurements import measurements;"
        "from comt_cli.recipe.find import find_recipe;"
        "from comt_cli.recipe.load import load_recipe;"
        "print(comt_cli.__file__, load_recipe(find_recipe('table3.yaml'), catalogue()).path, len(measurements()[0]))"
    )
    module, recipe, count = run(installed, tmp_path, "python", "-c", code).split()
    assert Path(module).is_relative_to(installed)
    assert Path(recipe).is_relative_to(installed)
    assert int(count) > 0
    assert "comt/table3" in run(installed, tmp_path, "comt", "recipes")


def test_constraints_are_names_and_versions_only():
    assert PINS
    for line in PINS:
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[0-9][a-z0-9.]*( ; .+)?", line), line


def test_constraints_cover_what_the_project_asks_for():
    pinned = {line.partition("==")[0] for line in PINS}
    groups = [entry for group in PROJECT["dependency-groups"].values() for entry in group if isinstance(entry, str)]
    project = PROJECT["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["gguf"], *groups]
    names = {re.match(r"[A-Za-z0-9._-]+", entry)[0].lower().replace(".", "-").replace("_", "-") for entry in asked}
    assert names - pinned == set()


def test_what_is_for_other_libraries_is_tested():
    tested = {*PROJECT["dependency-groups"]["test"][:-1]}
    for extra in ("evaluate", "huggingface"):
        assert {*PROJECT["project"]["optional-dependencies"][extra]} <= tested


def test_what_is_for_gpus_is_tested():
    assert PROJECT["project"]["optional-dependencies"]["gpu"] == [
        entry for entry in PROJECT["dependency-groups"]["test"] if "liger" in entry
    ]


@pytest.fixture(autouse=True)
def not_within_make(monkeypatch):
    """`make test PYTHON=...` hands its variables on to every make that is started below it."""
    for name in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "PYTHON", "PYTHON_READY"):
        monkeypatch.delenv(name, raising=False)


def program(path, prints):
    """A program that prints this, or fails where there is nothing to print."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {prints}\n" if prints else "#!/bin/sh\nexit 127\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("target", "there", "named", "used"),
    [
        ("test", "3.11.7", None, ".venv"),
        ("test", None, "3.12.1", ".venv"),
        ("test", "3.11.7", "3.12.1", ".venv-3.12.1"),
        ("test", "", "3.12.1", ".venv"),  # its interpreter is gone
        ("test", "3.11.7", "", ".venv-none"),  # pyenv's shim of a version that is not chosen
        ("lint", "3.11.7", "3.12.1", ".venv-3.12.1"),
        ("demo", "3.11.7", "3.12.1", ".venv-3.12.1"),
    ],
)
def test_a_python_that_is_named_is_the_one_that_is_used(tmp_path, target, there, named, used):
    """An environment of another version is left alone: it would pass or fail the tests in the other's name."""
    if there is not None:
        program(tmp_path / ".venv/bin/python", there)
    chosen = [] if named is None else [f"PYTHON={program(tmp_path / 'bin/python', named)}"]
    command = ["make", "-n", "-f", str(ROOT / "Makefile"), "-C", str(tmp_path), target, *chosen]
    for file in ("pyproject.toml", "constraints.txt"):
        (tmp_path / file).touch()
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    program_used = {"lint": "mypy", "demo": "comt"}.get(target, "pytest")
    assert set(re.findall(rf"(\S+)/bin/{program_used}\b", printed)) == {used}
    assert set(re.findall(r"venv --clear (\S+)", printed)) <= {used}


def test_a_python_that_does_not_run_is_refused_though_there_is_an_environment(tmp_path):
    program(tmp_path / ".venv/bin/python", "3.11.7")
    shim = program(tmp_path / "bin/python3.12", "")
    command = ["make", "-f", str(ROOT / "Makefile"), "-C", str(tmp_path), "setup", f"PYTHON={shim}"]
    for file in ("pyproject.toml", "constraints.txt"):
        (tmp_path / file).touch()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"comt needs Python 3.11, 3.12 or 3.13, and {shim} is none of them" in done.stderr


@pytest.mark.parametrize("lint", ["0", "1"])
def test_ci_tests_all_on_one_python_and_some_on_every_other_that_runs(tmp_path, lint):
    calls = tmp_path / "calls"
    script = shutil.copy(ROOT / ".ci/run", tmp_path / "run")
    checkout = tmp_path / "checkout"
    (checkout / ".ci").mkdir(parents=True)
    shutil.move(script, checkout / ".ci/run")
    program(checkout / ".venv/bin/python", "3.11")
    program(tmp_path / "bin/python3.12", "")
    program(tmp_path / "bin/python3.13", "")
    pyenv = program(tmp_path / "pyenv/versions/3.12.1/bin/python", "3.12")
    make = program(tmp_path / "bin/make", "")
    make.write_text(f'#!/bin/sh\necho "$*" >> {calls}\n[ "$1" != lint ] || exit {lint}\n', encoding="utf-8")
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "PYENV_ROOT": str(tmp_path / "pyenv")}
    done = subprocess.run(
        [str(checkout / ".ci/run")], capture_output=True, text=True, check=False, env=environment, cwd="/"
    )
    assert done.returncode == int(lint)
    assert calls.read_text().splitlines() == ["test", f"test-subset PYTHON={pyenv}", "lint"]
    assert done.stdout.splitlines() == [f"== Python 3.12: {pyenv}", "== Python 3.13: none runs here, skipped"]


def test_the_subset_for_other_pythons_is_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    paths = re.search(r"^VARYING := (.+)$", makefile, re.MULTILINE)[1].split()
    paths = [path.partition("::")[0] for path in paths if not path.startswith("-")]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_make_alone_explains_every_target():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE))
    assert {target for target in targets if f"make {target} " not in listed} == set()


@pytest.mark.parametrize("target", ["test-gpu", "gpu", "bench", "sanitize"])
def test_an_environment_that_is_there_is_used_without_setting_anything_up(target):
    """On a machine without a network: each command is that Python's, and none of .venv's."""
    printed = subprocess.run(
        ["make", "-n", "-C", str(ROOT), target, "PYTHON_READY=/there/python3"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.replace("\\\n", "")
    commands = [line for line in printed.splitlines() if not line.startswith("make")]
    assert commands
    assert all("/there/python3 -m " in command and ".venv" not in command for command in commands)
