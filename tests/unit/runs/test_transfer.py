"""Runs copied to a URL and from it: what arrives, what is replaced, what is refused; and transfers that are killed."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations
from one_process import answers

from comt_cli.errors import UserError
from comt_cli.files import canonical_json, read_json, sha256, write_json
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.known import known_runs
from comt_cli.runs.plan import BY_ID, RunSpec
from comt_cli.runs.transfer import Copy, Entry, copy_of, latest, logged_bytes, loss
from tests.shelf import Shelf, comt, shelf, tree

__all__ = ["shelf"]
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("COMT_CACHE", str(tmp_path_factory.mktemp("cache")))
    MemoryFileSystem.store.clear()


def save(directory: RunDirectory, lengths: dict[str, int], weights: bytes = b"weights") -> None:
    """A checkpoint as torch writes it, with these lengths of the logs."""
    counters = {"step": 3, "seconds": 1.5, **{f"{name}_bytes": length for name, length in lengths.items()}}
    with zipfile.ZipFile(directory.checkpoint_file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"id": "x", "progress": counters, "n": 7}, protocol=2))
        archive.writestr("archive/data/0", weights)


def trained(shelf: Shelf, spec: RunSpec, saved: int, after: int = 0, *, loss: float = 5.0, runs="runs") -> RunDirectory:
    """A run stopped some steps after its checkpoint."""
    directory = RunDirectory.of(Path(runs), spec)
    directory.create(spec)
    write_json(directory.environment_file, [{"step": 0}])
    lengths = {"gradients": 0}
    for name, file in (("metrics", directory.metrics_file), ("timings", directory.timings_file)):
        lines = [json.dumps({"step": step, name: loss}) + "\n" for step in range(saved + after)]
        file.write_text("".join(lines))
        lengths[name] = len("".join(lines[:saved]))
    save(directory, lengths, b"weights after %d" % saved * 40)
    return directory


def finished(shelf: Shelf, spec: RunSpec, **options) -> RunDirectory:
    directory = trained(shelf, spec, 20, **options)
    directory.metrics_table.write_text("step,loss\n")
    for name in ("outputs/final/test.txt", "evaluations/arc_easy-0.json", "weights-10.pt"):
        (directory.path / name).parent.mkdir(parents=True, exist_ok=True)
        (directory.path / name).write_text(name)
    write_json(directory.result_file, {"state": "done", "step": 20, "perplexity": 9.0})
    return directory


def files(directory: Path) -> dict[str, str]:
    return {name: text for name, text in tree(directory).items() if text != "/" and name != ".lock"}


def test_what_is_pushed_is_pulled(shelf: Shelf, tmp_path):
    """Through a folder and through a driver that has no folders."""
    done, open_ = finished(shelf, shelf.spec("pre-ln")), trained(shelf, shelf.spec("a/b"), 5, 2)
    changed = finished(shelf, shelf.spec("pre-ln", 2, overrides=["train.steps=20"]))
    for name in ("name.txt", "error.txt", "other.bin", "wandb"):
        (done.path / name).write_text("not for others")
    (done.path / "best-3.pt").symlink_to(tmp_path / "outside")
    for number, url in enumerate((str(tmp_path / "store"), f"file://{tmp_path}/store2", "memory://store/of/runs")):
        sent = comt("push", url)
        assert sent.exit_code == 0, sent.output
        assert f"3 runs from runs to {url}: 3 sent" in sent.output
        assert "mine/gates pre-ln, docs/tiny, seed 1: sent, " in sent.output
        there = Path(f"there{number}")
        received = comt("pull", url, "--runs", str(there))
        assert received.exit_code == 0, received.output
        assert f"3 runs from {url} to {there}: 3 received" in received.output
        own = {"name.txt", "error.txt", "other.bin", "wandb", "best-3.pt"}
        expected = {name: text for name, text in files(done.path).items() if name not in own}
        assert files(there / BY_ID / done.path.name) == expected
        got = files(there / BY_ID / open_.path.name)
        assert (got["metrics.jsonl"] + got["timings.jsonl"]).count("\n") == 10  # not the lines after its checkpoint
        assert got["checkpoint.pt"] == files(open_.path)["checkpoint.pt"]
        links = [path for path in there.rglob("seed*") if path.is_symlink()]
        assert {path.relative_to(there) for path in links} == {
            run.label.relative_to("runs") for run in (done, open_, changed)
        }
        assert read_json(there / "mine/gates@steps-20/changed-settings.json") == {"train.steps": 20}
        assert [path.name for path in (there / BY_ID).iterdir() if path.name.startswith(".")] == []
        for command in (["push", url], ["pull", url, "--runs", str(there)]):
            again = comt(*command)
            assert again.exit_code == 0
            assert "3 runs" in again.output
            assert "before; 0 B" in again.output


def test_runs_are_selected(shelf: Shelf):
    for row in ("pre-ln", "pre-ln+comt"):
        for seed in (1, 2):
            finished(shelf, shelf.spec(row, seed))
    name = shelf.spec("pre-ln").id
    assert "2 sent" in comt("push", "store", "mine/gates:pre-ln").output
    assert (
        "3 runs from runs to store: 2 there before, 1 sent"
        in comt("push", "store", "mine/gates:pre-ln+comt::2", "mine/gates:pre-ln").output
    )
    assert "1 received" in comt("pull", "store", name[:8], "--runs", "other").output
    assert [run.id for run in known_runs(Path("other"))] == [name]
    assert "0 runs from store to other: none" in comt("pull", "store", "mine/gates:a/b", "--runs", "other").output
    with pytest.raises(UserError, match="no run below store has an id that begins with fff"):
        raise comt("pull", "store", "fff", "--runs", "other").exception
    # Of another table with the same trainings, though nothing links to it.
    assert "3 received" in comt("pull", "store", "mine/twin", "--runs", "third").output


def test_without_checkpoints(shelf: Shelf):
    done, _ = finished(shelf, shelf.spec("pre-ln")), trained(shelf, shelf.spec("a/b"), 5)
    said = comt("push", "store", "--without-checkpoints").output
    assert "1 sent" in said
    assert "1 without a checkpoint to send" in said
    comt("pull", "store", "--runs", "other")
    there = Path("other", BY_ID, done.path.name)
    assert sorted(files(done.path).keys() - files(there).keys()) == ["checkpoint.pt", "weights-10.pt"]
    assert "1 there before" in comt("push", "store", "mine/gates:pre-ln", "--runs", "other").output
    assert "2 sent" in comt("push", "store").output  # with the weights, in place of the version without
    assert len(list(Path("store", done.path.name).iterdir())) == 1
    (there / "evaluations/more.json").write_text("{}")  # what was added stays
    assert "1 received" in comt("pull", "store", "mine/gates:pre-ln", "--runs", "other").output
    assert files(there) == files(done.path) | {"evaluations/more.json": "{}"}
    assert "without a checkpoint to receive" in comt("pull", "store", "--without-checkpoints", "--runs", "third").output


def test_a_later_state_replaces_an_earlier_one_and_never_the_other_way(shelf: Shelf):
    spec = shelf.spec("pre-ln")
    directory = trained(shelf, spec, 5)
    comt("push", "store")
    comt("pull", "store", "--runs", "other")
    copy = RunDirectory.of(Path("other"), spec)
    (copy.path / "best-3.pt").write_text("of an earlier checkpoint")
    copy.note_error("it was stopped")
    trained(shelf, spec, 9, 1)
    (directory.path / "best-7.pt").write_text("of this checkpoint")
    assert "1 sent" in comt("push", "store").output
    assert len(list(Path("store", spec.id).iterdir())) == 1, "the earlier version is removed"
    assert "1 there before" in comt("push", "store", "--runs", "other").output  # the store is further
    assert "1 received" in comt("pull", "store", "--runs", "other").output
    assert len(copy.metrics()) == 9
    assert sorted(path.name for path in copy.path.glob("*.pt")) == ["best-7.pt", "checkpoint.pt"]
    assert copy.error() is None
    trained(shelf, spec, 15)
    assert "1 here before" in comt("pull", "store").output  # this machine is further
    assert len(directory.metrics()) == 15
    finished(shelf, spec)
    assert "1 sent" in comt("push", "store").output
    assert "1 received" in comt("pull", "store", "--runs", "other").output
    assert copy.result() == directory.result()


@pytest.mark.parametrize("there_is_finished", [True, False])
@pytest.mark.parametrize("here_is_finished", [True, False])
def test_of_two_trainings_of_one_run_both_stay(shelf: Shelf, here_is_finished, there_is_finished):
    """Here a run has other losses than there, as after another machine's rounding."""
    spec = shelf.spec("pre-ln")
    for is_finished, runs, value in ((there_is_finished, "runs", 5.0), (here_is_finished, "other", 5.001)):
        finished(shelf, spec, runs=runs, loss=value) if is_finished else trained(shelf, spec, 8, runs=runs, loss=value)
    comt("push", "store")
    before = tree(Path("store")), tree(Path("other"))
    for command in ("push", "pull"):
        result = comt(command, "store", "--runs", "other")
        assert result.exit_code == 1
        assert "1 differ; 0 B" in result.output
        assert re.search(r"compared with \S+, \S+ (differs|is missing) (t?here). Nothing was replaced.", result.output)
    after = tree(Path("store")), tree(Path("other"))
    assert after == before


def test_two_trainings_at_the_url_are_named(shelf: Shelf):
    spec = shelf.spec("pre-ln")
    finished(shelf, spec)
    comt("push", "store")
    shutil.copytree("store", "moved")
    shutil.rmtree("store")
    finished(shelf, spec, loss=4.0)
    comt("push", "store")
    shutil.copytree("moved", "store", dirs_exist_ok=True)  # two machines pushed at once
    for command in (["pull", "store", "--runs", "other"], ["push", "store"]):
        result = comt(*command)
        assert result.exit_code == 1
        assert "differ" in result.output


def test_a_run_in_use_is_pushed_at_its_checkpoint_and_not_pulled_over(shelf: Shelf):
    spec = shelf.spec("pre-ln")
    directory = trained(shelf, spec, 5, 3)
    comt("push", "store")
    trained(shelf, spec, 9, 3)
    with directory.lock():
        assert "1 sent" in comt("push", "store").output
        with directory.metrics_file.open("a") as handle:
            handle.write('{"step": 12')
        assert "1 there before" in comt("push", "store").output
    comt("pull", "store", "--runs", "other")
    copy = RunDirectory.of(Path("other"), spec)
    assert len(copy.metrics()) == 9
    trained(shelf, spec, 12)
    comt("push", "store")
    with copy.lock():
        result = comt("pull", "store", "--runs", "other")
    assert result.exit_code == 1
    assert "in use here" in result.output
    assert f"is being trained by process {os.getpid()}" in result.output
    assert len(copy.metrics()) == 9


def test_a_new_run_that_has_no_checkpoint_is_left_out(shelf: Shelf):
    spec = shelf.spec("pre-ln")
    trained(shelf, spec, 5).checkpoint_file.unlink()
    assert "1 without a checkpoint to send" in comt("push", "store").output
    trained(shelf, spec, 5, runs="other")
    comt("push", "store", "--runs", "other")
    assert "1 received" in comt("pull", "store").output  # lines without a checkpoint would be computed again
    assert (Path("runs", BY_ID, spec.id, "checkpoint.pt")).exists()


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
        (lambda: damage_content("checkpoint.pt"), "the checksum of checkpoint.pt is wrong. Delete "),
        (lambda: damage_content("spec.json"), "the checksum of spec.json is wrong"),
        (lambda: damage_content("manifest.json"), "its manifest is damaged"),
        (lambda: only("*/*/checkpoint.pt").write_bytes(b"cut"), "checkpoint.pt is missing or was cut off"),
        (lambda: only("*/*/result.json").unlink(), "result.json is missing or was cut off"),
    ],
)
def test_damage_at_the_url_is_noticed(shelf: Shelf, harm, said):
    finished(shelf, shelf.spec("pre-ln"))
    comt("push", "store")
    harm()
    sound = finished(shelf, shelf.spec("a/b"))
    comt("push", "store", "mine/gates:a/b")
    result = comt("pull", "store", "--runs", "other")
    assert result.exit_code == 1
    assert said in result.output
    assert "1 damaged" in result.output
    assert [run.id for run in known_runs(Path("other"))] == [sound.path.name]
    if "cut off" in said:  # a repeated push mends it
        assert "1 sent" in comt("push", "store", "mine/gates:pre-ln").output
        assert comt("pull", "store", "--runs", "other").exit_code == 0


def test_a_damaged_checkpoint_here_is_not_pushed(shelf: Shelf):
    directory = trained(shelf, shelf.spec("pre-ln"), 5)
    content = directory.checkpoint_file.read_bytes()
    for damaged in (
        content[:-30],
        b"weights",
        zip_of(b"\x80\x02}."),
        zip_of(b"\x80\x02X\xff"),
        zip_of(b"", deflated=True),
    ):
        directory.checkpoint_file.write_bytes(damaged)
        result = comt("push", "store")
        assert result.exit_code == 1
        assert "checkpoint.pt is damaged" in result.output
        assert not Path("store").exists()


def zip_of(pickled: bytes, *, deflated: bool = False) -> bytes:
    with zipfile.ZipFile("made.zip", "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickled)
    return Path("made.zip").read_bytes()


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def test_nothing_is_unpickled(shelf: Shelf):
    directory = trained(shelf, shelf.spec("pre-ln"), 5)
    bomb = pickle.dumps({"bomb": Bomb(), "metrics_bytes": 10, "timings_bytes": 300}, protocol=2)
    directory.checkpoint_file.write_bytes(zip_of(bomb))
    with directory.checkpoint_file.open("rb") as handle:
        assert logged_bytes(handle, directory.checkpoint_file) == {"metrics.jsonl": 10, "timings.jsonl": 300}
    comt("push", "store")
    comt("pull", "store", "--runs", "other")
    assert not Path("unpickled").exists()


# ---- what strangers write


def forged(change, run: str | None = None) -> None:
    """The version in the store with a changed manifest, whose hash is right."""
    version = only("*/*")
    files = change(read_json(version / "manifest.json"), version)
    content = canonical_json(files)
    new = version.parent.with_name(run or version.parent.name) / sha256(content)[:16]
    new.parent.mkdir(exist_ok=True)
    version.rename(new)
    (new / "manifest.json").write_text(content)


@pytest.mark.parametrize(
    "name", ["../../evil.json", "/tmp/evil.json", "model.py", "outputs/final/../../x.txt", ".lock", "weights-1.pt\n"]
)
def test_unknown_files_are_refused(shelf: Shelf, name):
    finished(shelf, shelf.spec("pre-ln"))
    comt("push", "store")

    def change(files, version):
        return files | {name: {"size": 4, "sha256": sha256(b"evil")}}

    forged(change)
    result = comt("pull", "store", "--runs", "other")
    assert result.exit_code == 1
    assert "is no file of a run" in result.output
    assert known_runs(Path("other")) == []


NO_ENTRIES = [
    *({"size": -1, "sha256": "0" * 64}, {"size": "4", "sha256": "0" * 64}, {"size": 4, "sha256": "../x"}),
    *({"size": 4}, [4, "0" * 64]),
]


@pytest.mark.parametrize("entry", NO_ENTRIES)
def test_other_manifests_are_refused(shelf: Shelf, entry):
    finished(shelf, shelf.spec("pre-ln"))
    comt("push", "store")
    forged(lambda files, version: files | {"metrics.csv": entry})
    result = comt("pull", "store", "--runs", "other")
    assert result.exit_code == 1
    assert "1 damaged" in result.output


def test_a_run_under_another_id_or_of_another_version_is_refused(shelf: Shelf):
    for value, run in (("0" * 12, "0" * 12), (None, None), (None, "0" * 12)):
        shutil.rmtree("store", ignore_errors=True)
        finished(shelf, shelf.spec("pre-ln"))
        comt("push", "store")

        def change(files, version, value=value, run=run):
            if value is None and run is not None:
                return files  # under another id
            spec = read_json(version / "spec.json") | {"seed": 7, **({"id": value} if value else {})}
            write_json(version / "spec.json", spec)
            content = (version / "spec.json").read_bytes()
            return files | {"spec.json": {"size": len(content), "sha256": sha256(content)}}

        forged(change, run)
        result = comt("pull", "store", "--runs", "other")
        assert result.exit_code == 1
        assert "1 refused" in result.output
        assert "store" in result.output
        assert known_runs(Path("other")) == []


# ---- URLs


@pytest.mark.parametrize("command", ["push", "pull"])
def test_urls_that_cannot_be_used(shelf: Shelf, command, monkeypatch):
    finished(shelf, shelf.spec("pre-ln"))
    driver = {"class": "no_such_driver.FS", "err": "Install no_such_driver to access nowhere"}
    monkeypatch.setitem(known_implementations, "nowhere", driver)
    Path("others").mkdir()
    Path("others/notes.txt").write_text("mine")
    for url, said, hint in (
        ("gopher://host/x", "Protocol not known: gopher", "Give a folder, ssh://HOST/FOLDER"),
        ("nowhere://host/x", "a driver is missing: Install no_such_driver", "pip install no_such_driver"),
        ("others", "others has other files, but no runs of comt push", "a folder of its own"),
        ("runs", "runs is a folder of runs itself", "--runs"),
        ("others/notes.txt", "notes.txt", ""),
    ):
        result = comt(command, url, *(["--runs", "other"] if command == "pull" else []))
        assert isinstance(result.exception, UserError), (url, result.output)
        assert result.exception.exit_status == 2
        assert said in result.exception.message
        assert hint in (result.exception.hint or "")
    assert tree(Path("others")) == {"notes.txt": "mine"}


def test_a_folder_without_runs_is_named(shelf: Shelf):
    with pytest.raises(UserError, match="nothing is no folder of runs"):
        raise comt("push", "store", "--runs", "nothing").exception
    result = comt("pull", "memory://empty")
    assert (result.exit_code, result.output) == (0, "0 runs from memory://empty to runs: none; 0 B\n")


def test_a_password_is_not_printed(shelf: Shelf):
    with pytest.raises(UserError) as raised:
        raise comt("pull", "gopher://me:secret@host/x").exception
    assert "me@host" in raised.value.message
    assert "secret" not in str(raised.value)


def test_a_url_that_may_not_be_written(shelf: Shelf, tmp_path):
    finished(shelf, shelf.spec("pre-ln"))
    prefix = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.geteuid() == 0 else []
    if prefix and shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and there is no setpriv")
    Path("closed").mkdir(mode=0o555)
    Path("secret").mkdir(mode=0)
    commands = [["push", "closed"], ["push", "secret"], ["pull", "secret", "--runs", "other"]]
    before = (
        "from comt_cli.tasks import Task; Task.identify = lambda self, settings: ('asked-feed', 'c0ffee0123456789')\n"
    )
    try:
        told = answers(commands, tmp_path, prefix=prefix, before=before)
    finally:
        Path("secret").chmod(0o700)
    assert [status for status, *_ in told] == [2, 2, 2]
    assert all("Permission denied" in said for _, said, _ in told)
    assert not any("torch" in modules for *_, modules in told)


def test_an_error_in_the_middle_says_so(shelf: Shelf, monkeypatch):
    finished(shelf, shelf.spec("pre-ln"))
    size = MemoryFileSystem.size

    def breaking(self, path):
        if path.endswith("checkpoint.pt"):
            raise ConnectionError("connection lost\nmore")
        return size(self, path)

    monkeypatch.setattr(MemoryFileSystem, "size", breaking)
    result = comt("push", "memory://store")
    assert isinstance(result.exception, UserError)
    assert result.exception.exit_status == 1
    assert "memory://store: connection lost" in result.exception.message
    assert "goes on" in result.exception.hint
    monkeypatch.undo()


# ---- killed transfers

CODE = """
import os, signal, sys
from pathlib import Path
from comt_cli.runs import transfer
from comt_cli.tasks import Task
Task.identify = lambda self, settings: ("asked-feed", "c0ffee0123456789")
transfer.BLOCK, left, blocks, replace = 256, int(sys.argv.pop(1)), transfer._blocks, Path.replace

def happened():
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

def dying_blocks(source, size):
    for block in blocks(source, size):
        happened()
        yield block
        happened()

def dying_replace(path, target):
    happened()
    replace(path, target)
    happened()

transfer._blocks, Path.replace = dying_blocks, dying_replace
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
    trained(shelf, spec, 5)
    comt("push", "store")
    comt("pull", "store", "--runs", "other")
    earlier, copy = files(Path("other", BY_ID, spec.id)), RunDirectory.of(Path("other"), spec)
    done = finished(shelf, spec)
    for moment in moments():
        if not killed_at(moment, "push", "store"):
            break
        assert "1 here before" in comt("pull", "store", "--runs", "other").output, "what is there is the earlier state"
        assert files(copy.path) == earlier
    assert moment > 30, "it was killed several times"
    for moment in moments():
        if not killed_at(moment, "pull", "store", "--runs", "other"):
            break
        assert copy.result() in (None, done.result())
        if copy.result() is None:  # it can be resumed: every log has what the checkpoint states
            with ExitStack() as stack:
                state = copy_of(copy, stack)
                assert (
                    state.files["metrics.jsonl"].size
                    == logged_bytes(stack.enter_context(copy.checkpoint_file.open("rb")), copy.path)["metrics.jsonl"]
                )
        assert [run.id for run in known_runs(Path("other"))] == [spec.id]
    assert moment > 30
    assert files(copy.path) == files(done.path)
    assert [path.name for path in Path("other", BY_ID).iterdir()] == [spec.id]


def test_a_first_pull_that_is_killed_leaves_no_run(shelf: Shelf):
    finished(shelf, shelf.spec("pre-ln"))
    comt("push", "store")
    assert killed_at(20, "pull", "store", "--runs", "other")
    assert known_runs(Path("other")) == []
    assert comt("pull", "store", "--runs", "other").exit_code == 0


def test_leftovers_of_killed_transfers_are_removed_a_day_later(shelf: Shelf):
    spec = shelf.spec("pre-ln")
    for name, age in (("old", 2 * 86400), ("new", 60)):
        path = Path("store", spec.id, sha256(name)[:16], "checkpoint.pt")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"half")
        at = path.stat().st_mtime - age
        os.utime(path, (at, at))
    finished(shelf, spec)
    assert "1 sent" in comt("push", "store").output
    assert not Path("store", spec.id, sha256("old")[:16]).exists()
    assert Path("store", spec.id, sha256("new")[:16]).exists()  # it may be another machine's


def test_two_pushes_do_not_write_at_once(shelf: Shelf, cache):
    finished(shelf, shelf.spec("pre-ln"))
    lock = Path(os.environ["COMT_CACHE"], "push", f"{sha256('store')[:16]}.lock")
    lock.parent.mkdir()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        words = [sys.executable, "-m", "comt_cli", "push", "store"]
        process = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)
    assert process.communicate()[0].decode().startswith("1 run from runs to store: 1 ")


# ---- what is lost


def copy(*names: str, **logs: str) -> Copy:
    """Files whose content is their name, or as given."""
    contents = {name: name.encode() for name in names} | {f"{name}.jsonl": text.encode() for name, text in logs.items()}
    entries = {name: Entry(size=len(content), sha256=sha256(content)) for name, content in contents.items()}

    def opened(name):
        return io.BytesIO(contents[name])

    return Copy(entries, opened, folder=",".join(sorted(contents)))


def test_what_is_lost_if_one_copy_replaces_another():
    begun, later = copy("checkpoint.pt", "spec.json", metrics="ab"), copy("checkpoint.pt", metrics="abc")
    done = copy("checkpoint.pt", "result.json", metrics="abcd")
    light = copy("result.json", metrics="abcd")
    other = copy("checkpoint.pt", "result.json", metrics="axcd")
    assert [
        loss(old, new) for old, new in ((begun, later), (later, done), (begun, done), (light, done), (done, done))
    ] == [None] * 5
    assert loss(later, begun) == "metrics.jsonl differs"
    assert loss(begun, other) == "metrics.jsonl differs"
    assert loss(done, other) == "metrics.jsonl differs"
    assert loss(done, light) == "checkpoint.pt is missing"
    assert loss(done, light, stays=True) is None
    assert loss(begun, light) == "checkpoint.pt is missing"  # nothing would belong to the result
    assert loss(done, later, stays=True) is not None
    assert loss(copy(timings="a", metrics="a"), copy("result.json", metrics="ab")) == "timings.jsonl is missing"
    assert latest([begun, done, later]) is done
    assert latest([done, other]) is None
    assert latest([]) is None
