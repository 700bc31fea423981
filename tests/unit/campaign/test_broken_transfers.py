"""Transfers that are killed, damaged files, and what strangers write: nothing half or unknown becomes a run."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from comt_cli.campaign.transfer import Store, copy_of
from comt_cli.exchange.checkpoint import read_state
from comt_cli.files import canonical_json, read_json, sha256, write_json
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.known import known_runs
from comt_cli.runs.plan import BY_ID
from tests.copied_runs import files, finished, own_cache, trained
from tests.shelf import Shelf, comt, shelf

__all__ = ["own_cache", "shelf"]
ROOT = Path(__file__).parents[3]


# ---- damage


def only(pattern: str) -> Path:
    (found,) = Path("store").glob(pattern)
    return found


def damage_content(name: str) -> None:
    path = only(f"*/*/{name}")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda: damage_content("checkpoint.pt"), "the checksum of checkpoint.pt is wrong; delete "),
        (lambda: damage_content("spec.json"), "the checksum of spec.json is wrong"),
        (lambda: only("*/*/manifest.json").write_text("{"), "it is not JSON"),
        (lambda: only("*/*/checkpoint.pt").write_bytes(b"cut"), "checkpoint.pt is missing or was cut off"),
        (lambda: only("*/*/result.json").unlink(), "result.json is missing or was cut off"),
    ],
)
def test_damage_at_the_url_is_noticed(shelf: Shelf, harm, said):
    finished(shelf.spec("pre-ln"))
    comt("push", "store")
    harm()
    sound = finished(shelf.spec("a/b"))
    comt("push", "store", "mine/gates:a/b")
    result = comt("pull", "store", "--runs", "other")
    assert result.exit_code == 1
    assert said in result.output
    assert re.search("1 (damaged|not copied)", result.output)
    assert [run.id for run in known_runs(Path("other"))] == [sound.path.name]
    shutil.rmtree(re.search(r"delete (\S+), and push the run again", result.output)[1])  # as the message says
    assert "1 sent" in comt("push", "store", "mine/gates:pre-ln").output
    assert comt("pull", "store", "--runs", "other").exit_code == 0


def test_a_manifest_that_was_not_written_is_no_damage_and_one_of_another_version_is_kept(shelf: Shelf):
    finished(shelf.spec("pre-ln"))
    store = "store [of *?]"  # no wildcards
    comt("push", store)
    (manifest,) = (path for path in Path(store).glob("*/*/*") if path.name == "manifest.json")
    content = manifest.read_text()
    manifest.write_text('{"spec.json": [1, "a"]}')
    result = comt("pull", store, "--runs", "other")
    assert result.exit_code == 1
    assert "another version of comt wrote its manifest.json" in result.output
    assert "delete" not in result.output
    manifest.write_text("")
    result = comt("pull", store, "--runs", "other")
    assert (result.exit_code, "0 runs" in result.output) == (0, True)
    manifest.write_text(content)
    assert "1 received" in comt("pull", store, "--runs", "other").output


def test_a_damaged_checkpoint_here_is_not_pushed(shelf: Shelf):
    directory, sound = trained(shelf.spec("pre-ln"), 5), finished(shelf.spec("a/b"))
    content = directory.checkpoint_file.read_bytes()
    for damaged in (content[:-30], b"weights", content[:700] + b"x" + content[701:]):
        directory.checkpoint_file.write_bytes(damaged)
        result = comt("push", "store")
        assert result.exit_code == 1
        assert "1 not copied" in result.output
        assert str(directory.checkpoint_file) in result.output
        assert [path.name for path in Path("store").iterdir()] == [sound.path.name]


def test_nothing_is_unpickled(shelf: Shelf):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, ("unpickled",)

    directory = trained(shelf.spec("pre-ln"), 5)
    torch.save({"format": 1, "spec": Bomb(), "model": {}, "progress": {}}, directory.checkpoint_file)
    assert "1 not copied" in comt("push", "store").output
    assert not Path("unpickled").exists()


# ---- what strangers write


def forged(change, run: str | None = None) -> None:
    """The version in the store with a changed manifest."""
    version = only("*/*")
    stated = read_json(version / "manifest.json")
    stated["files"] = change(stated["files"], version)
    (version / "manifest.json").write_text(canonical_json(stated))
    version.parent.rename(version.parent.with_name(run or version.parent.name))


@pytest.mark.parametrize(
    "name", ["../../evil.json", "/tmp/evil.json", "model.py", "outputs/final/../../x.txt", ".lock", "weights-1.pt\n"]
)
def test_unknown_files_are_refused(shelf: Shelf, name):
    finished(shelf.spec("pre-ln"))
    comt("push", "store")

    def change(files, version):
        return files | {name: [4, sha256(b"evil")]}

    forged(change)
    result = comt("pull", "store", "--runs", "other")
    assert result.exit_code == 1
    assert "is no file of a run" in result.output
    assert known_runs(Path("other")) == []


NO_ENTRIES = [[-1, "0" * 64], ["4", "0" * 64], [13], [13, "0" * 64, 1], {"size": 13}, 13, None]


@pytest.mark.parametrize("entry", NO_ENTRIES)
def test_other_manifests_are_refused(shelf: Shelf, entry):
    finished(shelf.spec("pre-ln"))
    comt("push", "store")
    forged(lambda files, version: files | {"metrics.csv": entry})
    result = comt("pull", "store", "--runs", "other")
    assert result.exit_code == 1
    assert "1 damaged" in result.output


@pytest.mark.parametrize("step", ["", '"step": "last", ', '"step": Infinity, ', '"step": null, '])
def test_manifests_without_a_step_are_refused(shelf: Shelf, step):
    finished(shelf.spec("pre-ln"))
    comt("push", "store")
    manifest = only("*/*/manifest.json")
    content = manifest.read_text()
    assert content.endswith('"step":0}')
    manifest.write_text("{" + step + content[1:].replace(',"step":0}', "}"))
    result = comt("pull", "store", "--runs", "other")
    assert (result.exit_code, "1 damaged" in result.output) == (1, True)


def test_a_run_under_another_id_or_of_another_version_is_refused(shelf: Shelf):
    for value, run in (("0" * 12, "0" * 12), (None, None), (None, "0" * 12)):
        shutil.rmtree("store", ignore_errors=True)
        finished(shelf.spec("pre-ln"))
        comt("push", "store")

        def change(files, version, value=value, run=run):
            if value is None and run is not None:
                return files  # under another id
            spec = read_json(version / "spec.json") | {"seed": 7, **({"id": value} if value else {})}
            write_json(version / "spec.json", spec)
            content = (version / "spec.json").read_bytes()
            return files | {"spec.json": [len(content), sha256(content)]}

        forged(change, run)
        result = comt("pull", "store", "--runs", "other")
        assert result.exit_code == 1
        assert "1 not copied" in result.output
        assert known_runs(Path("other")) == []


# ---- killed transfers

CODE = """
import os, signal, sys
from pathlib import Path
from comt_cli.campaign import transfer
from comt_cli.tasks import Task
Task.identify = lambda self, settings: ("asked-feed", "c0ffee0123456789")
transfer.BLOCK, left, digest = 256, int(sys.argv.pop(1)), transfer._digest
replace, rename = Path.replace, Path.rename

def happened():
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

class Dying:
    def __init__(self, source):
        self.source = source

    def read(self, size):
        happened()
        return self.source.read(size)

def dying_digest(source, size, target=None):
    found = digest(Dying(source), size, target)
    happened()
    return found

def dying_rename(path, target):
    happened()
    rename(path, target)
    happened()

def dying_replace(path, target):
    happened()
    replace(path, target)
    happened()

transfer._digest, Path.replace, Path.rename = dying_digest, dying_replace, dying_rename
from comt_cli.__main__ import main
main()
"""


def killed_at(moment: int, *command: str) -> bool:
    """Whether the command was killed then; else it has ended well."""
    words = [sys.executable, "-c", CODE, str(moment), *command]
    done = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def moments(first: int = 1):
    """1, 3, 8, 18 ...: some early, some late."""
    while True:
        yield first
        first = first * 2 + 2


def test_a_killed_transfer_leaves_nothing_half(shelf: Shelf):
    """Killed at many moments, one after the other; then the same command goes on."""
    spec = shelf.spec("pre-ln")
    trained(spec, 5)
    comt("push", "store")
    comt("pull", "store", "--runs", "other")
    earlier, copy = files(Path("other", BY_ID, spec.id)), RunDirectory.of(Path("other"), spec)
    done = finished(spec)
    for moment in moments():
        if not killed_at(moment, "push", "store"):
            break
        result = comt("pull", "store", "--runs", "other")
        assert result.exit_code == 0
        assert "1 here before" in result.output, "what is there is the earlier state"
        assert files(copy.path) == earlier
    assert moment > 30, "it was killed several times"
    for moment in moments():
        if not killed_at(moment, "pull", "store", "--runs", "other"):
            break
        assert copy.result() in (None, done.result())
        if copy.result() is None:  # it can be resumed: every log has what the checkpoint states
            with ExitStack() as stack:
                state = copy_of(copy, stack)
                progress = read_state(copy.checkpoint_file)["progress"]
                assert state.files["metrics.jsonl"][0] == progress["metrics_bytes"]
                assert copy.metrics_file.stat().st_size >= progress["metrics_bytes"]
        assert [run.id for run in known_runs(Path("other"))] == [spec.id]
    assert moment > 30
    assert files(copy.path) == files(done.path)
    assert sorted(path.name for path in Path("other", BY_ID).iterdir()) == [".pull.lock", spec.id]


def test_a_first_pull_that_is_killed_leaves_no_run(shelf: Shelf):
    finished(shelf.spec("pre-ln"))
    comt("push", "store")
    assert killed_at(20, "pull", "store", "--runs", "other")
    assert known_runs(Path("other")) == []
    assert comt("pull", "store", "--runs", "other").exit_code == 0


def test_leftovers_of_killed_transfers_do_not_count(shelf: Shelf):
    """They may be another machine's at work, so they stay."""
    spec = shelf.spec("pre-ln")
    path = Path("store", spec.id, "0123456789abcdef", "checkpoint.pt")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half")
    assert "none" in comt("pull", "store", "--runs", "other").output
    finished(spec)
    assert "1 sent" in comt("push", "store").output
    assert path.read_bytes() == b"half"
    assert "1 received" in comt("pull", "store", "--runs", "other").output


def test_pushes_of_several_machines_at_once(shelf: Shelf, monkeypatch, tmp_path):
    """Each has listed the URL before the others write: no file is written by two, and the next command takes either."""
    spec, usual = shelf.spec("pre-ln"), Store.versions
    for runs, steps in (("runs", 5), ("other", 9), ("third", 9)):
        trained(spec, steps, runs=runs)
    monkeypatch.setattr(Store, "versions", lambda store: {})
    for runs in ("runs", "other", "third"):
        assert "1 sent" in comt("push", "store", "--runs", runs).output
    monkeypatch.setattr(Store, "versions", usual)
    assert len(list(Path("store", spec.id).iterdir())) == 3
    assert "1 received" in comt("pull", "store", "--runs", "fourth").output
    assert len(RunDirectory.of(Path("fourth"), spec).metrics()) == 9
    trained(spec, 12)
    assert "1 sent" in comt("push", "store").output
    assert len(list(Path("store", spec.id).iterdir())) == 1


@pytest.mark.parametrize("ends", ["missing", "short"])
def test_a_version_that_is_replaced_during_a_pull(shelf: Shelf, monkeypatch, ends):
    """By a job that pushes meanwhile. The other runs are copied."""
    spec = shelf.spec("pre-ln")
    trained(spec, 5)
    comt("push", "store")
    sound, usual = finished(shelf.spec("a/b")), Store._opened
    comt("push", "store", "mine/gates:a/b")

    @contextlib.contextmanager
    def replaced(store, folder, name):
        if folder.startswith(spec.id) and name == "checkpoint.pt":
            trained(spec, 9)
            assert "1 sent" in comt("push", "store", "mine/gates:pre-ln").output
            if ends == "short":
                yield io.BytesIO(b"PK")
                return
        with usual(store, folder, name) as source:
            yield source

    with monkeypatch.context() as patched:
        patched.setattr(Store, "_opened", replaced)
        result = comt("pull", "store", "--runs", "other")
    assert result.exit_code == 1
    assert f"{spec.id}: not copied: another command replaced it at the URL meanwhile; give the comm" in result.output
    assert "damaged" not in result.output
    assert [run.id for run in known_runs(Path("other"))] == [sound.path.name]
    assert "1 received" in comt("pull", "store", "--runs", "other").output


def test_the_result_is_moved_last(shelf: Shelf, monkeypatch):
    spec, moved, replace = shelf.spec("pre-ln"), list[str](), Path.replace
    trained(spec, 5, runs="other")
    finished(spec)
    comt("push", "store")

    def noted(path: Path, target: Path) -> Path:
        if ".pull-" in str(path):
            moved.append(target.name)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", noted)
    assert "1 received" in comt("pull", "store", "--runs", "other").output
    assert "metrics.jsonl" in moved[:-2]
    assert moved[-2:] == ["checkpoint.pt", "result.json"]


def test_two_pushes_do_not_write_at_once(shelf: Shelf, monkeypatch):
    """The store is read and written under a lock of its URL."""
    finished(shelf.spec("pre-ln"))
    path, held = Path(os.environ["COMT_CACHE"], "push", f"{sha256('store')[:16]}.lock"), list[bool]()
    usual = Store.versions

    def noted(store: Store):
        with path.open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(False)
            except BlockingIOError:
                held.append(True)
        return usual(store)

    monkeypatch.setattr(Store, "versions", noted)
    assert comt("push", "store").exit_code == 0
    assert held == [True]
