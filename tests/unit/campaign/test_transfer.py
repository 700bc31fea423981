"""Runs copied to a URL and from it: what arrives, what is replaced, and which URLs can be used."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations
from one_process import answers

from comt_cli.campaign import transfer
from comt_cli.campaign.transfer import Copy, loss
from comt_cli.errors import StorageError, UserError
from comt_cli.exchange import checkpoint
from comt_cli.files import read_json, sha256
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import BY_ID
from tests.copied_runs import files, finished, own_cache, save, trained
from tests.shelf import Shelf, comt, shelf, tree

__all__ = ["own_cache", "shelf"]
ROOT = Path(__file__).parents[3]


def test_what_is_pushed_is_pulled(shelf: Shelf, tmp_path):
    """Through a folder and through a driver that has no folders."""
    done, open_ = finished(shelf.spec("pre-ln")), trained(shelf.spec("a/b"), 5, 2)
    changed = finished(shelf.spec("pre-ln", 2, overrides=["train.steps=20"]))
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
        assert [path.name for path in (there / BY_ID).glob(".*")] == [".pull.lock"]
        for command in (["push", url], ["pull", url, "--runs", str(there)]):
            again = comt(*command)
            assert again.exit_code == 0
            assert "3 runs" in again.output
            assert "before; 0 B" in again.output


def test_runs_are_selected(shelf: Shelf):
    for row in ("pre-ln", "pre-ln+comt"):
        for seed in (1, 2):
            finished(shelf.spec(row, seed))
    name = shelf.spec("pre-ln").id
    assert "2 sent" in comt("push", "store", "mine/gates:pre-ln").output
    assert (
        "3 runs from runs to store: 2 there before, 1 sent"
        in comt("push", "store", "mine/gates:pre-ln+comt::2", "mine/gates:pre-ln").output
    )
    assert "1 run from runs to one: 1 sent" in comt("push", "one", name[:8], "mine/gates:pre-ln::1").output
    with pytest.raises(UserError, match="no run below runs has an id that begins with fff"):
        raise comt("push", "store", "fff").exception
    assert "3 runs from store to other: 3 received" in comt("pull", "store", "--runs", "other").output


def test_weights_are_added_to_a_run_without_them(shelf: Shelf):
    done = finished(shelf.spec("pre-ln"))
    comt("push", "store")
    there = RunDirectory.of(Path("other"), shelf.spec("pre-ln")).path
    shutil.copytree(done.path, there, ignore=shutil.ignore_patterns("*.pt"))  # as from an archive
    assert "1 there before" in comt("push", "store", "--runs", "other").output
    (there / "evaluations/more.json").write_text("{}")  # what was added stays
    assert "1 received" in comt("pull", "store", "--runs", "other").output
    assert files(there) == files(done.path) | {"evaluations/more.json": "{}"}


def test_a_later_state_replaces_an_earlier_one_and_never_the_other_way(shelf: Shelf):
    spec = shelf.spec("pre-ln")
    directory = trained(spec, 5)
    comt("push", "store")
    comt("pull", "store", "--runs", "other")
    copy = RunDirectory.of(Path("other"), spec)
    (copy.path / "best-3.pt").write_text("of an earlier checkpoint")
    copy.note_error("it was stopped")
    trained(spec, 9, 1)
    (directory.path / "best-7.pt").write_text("of this checkpoint")
    assert "1 sent" in comt("push", "store").output
    assert len(list(Path("store", spec.id).iterdir())) == 1, "the earlier version is removed"
    assert "1 there before" in comt("push", "store", "--runs", "other").output  # the store is further
    assert "1 received" in comt("pull", "store", "--runs", "other").output
    assert len(copy.metrics()) == 9
    assert sorted(path.name for path in copy.path.glob("*.pt")) == ["best-3.pt", "best-7.pt", "checkpoint.pt"]
    assert copy.error() is None
    trained(spec, 15)
    assert "1 here before" in comt("pull", "store").output  # this machine is further
    assert len(directory.metrics()) == 15
    finished(spec)
    assert "1 sent" in comt("push", "store").output
    assert "1 received" in comt("pull", "store", "--runs", "other").output
    assert copy.result() == directory.result()
    assert not list(copy.path.glob("best-*.pt"))


@pytest.mark.parametrize("there_is_finished", [True, False])
@pytest.mark.parametrize("here_is_finished", [True, False])
def test_of_two_trainings_of_one_run_both_stay(shelf: Shelf, here_is_finished, there_is_finished):
    """Here a run has other losses than there, as after another machine's rounding."""
    spec = shelf.spec("pre-ln")
    for is_finished, runs, value in ((there_is_finished, "runs", 5.0), (here_is_finished, "other", 5.001)):
        finished(spec, runs=runs, loss=value) if is_finished else trained(spec, 8, runs=runs, loss=value)
    comt("push", "store")
    before = files(Path("store")), files(Path("other"))
    for command in ("push", "pull"):
        result = comt(command, "store", "--runs", "other")
        assert result.exit_code == 1
        assert "1 not copied; 0 B" in result.output
        assert re.search(r"compared with \S+, \S+ (differs|is missing) (t?here); nothing was replaced", result.output)
    assert (files(Path("store")), files(Path("other"))) == before


def test_two_trainings_at_the_url_are_named(shelf: Shelf):
    spec = shelf.spec("pre-ln")
    finished(spec)
    comt("push", "store")
    shutil.copytree("store", "moved")
    shutil.rmtree("store")
    finished(spec, loss=4.0)
    comt("push", "store")
    shutil.copytree("moved", "store", dirs_exist_ok=True)  # two machines pushed at once
    result = comt("pull", "store", "--runs", "other")
    assert result.exit_code == 1
    assert "has two trainings of it; neither was copied" in result.output
    assert "1 there before" in comt("push", "store").output
    assert len(list(Path("store", spec.id).iterdir())) == 2


def test_a_run_in_use_is_pushed_at_its_checkpoint_and_not_pulled_over(shelf: Shelf):
    spec = shelf.spec("pre-ln")
    directory = trained(spec, 5, 3)
    comt("push", "store")
    trained(spec, 9, 3)
    with directory.lock():
        assert "1 sent" in comt("push", "store").output
        with directory.metrics_file.open("a") as handle:
            handle.write('{"step": 12')
        assert "1 there before" in comt("push", "store").output
    comt("pull", "store", "--runs", "other")
    copy = RunDirectory.of(Path("other"), spec)
    assert len(copy.metrics()) == 9
    trained(spec, 12)
    comt("push", "store")
    with copy.lock():
        result = comt("pull", "store", "--runs", "other")
    assert result.exit_code == 1
    assert f"is being trained by process {os.getpid()}" in result.output
    assert len(copy.metrics()) == 9


def test_a_checkpoint_that_is_replaced_during_a_push(shelf: Shelf, monkeypatch):
    """Before all files are open, the run is named; after that, the open state is sent."""
    spec = shelf.spec("pre-ln")
    trained(spec, 5)
    (RunDirectory.of(Path("runs"), spec).path / "best-3.pt").write_bytes(b"")

    def opening(path: Path):
        if path.name == "best-3.pt":
            trained(spec, 7)
        return path.open("rb")

    with monkeypatch.context() as patched:
        patched.setattr(transfer, "open_file", opening)
        result = comt("push", "store")
    assert result.exit_code == 1
    assert "saves at this moment" in result.output
    usual = checkpoint.read_own

    def reading(*given, **options):
        trained(spec, 9)
        return usual(*given, **options)

    monkeypatch.setattr(checkpoint, "read_own", reading)
    assert "1 sent" in comt("push", "store").output
    (metrics,) = Path("store").glob("*/*/metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 7


def test_a_new_run_that_has_no_checkpoint_is_left_out(shelf: Shelf):
    spec = shelf.spec("pre-ln")
    trained(spec, 5).checkpoint_file.unlink()
    assert "1 without a checkpoint to send" in comt("push", "store").output
    trained(spec, 5, runs="other")
    comt("push", "store", "--runs", "other")
    assert "1 received" in comt("pull", "store").output  # lines without a checkpoint would be computed again
    assert (Path("runs", BY_ID, spec.id, "checkpoint.pt")).exists()


# ---- URLs


@pytest.mark.parametrize("command", ["push", "pull"])
def test_urls_that_cannot_be_used(shelf: Shelf, command, monkeypatch):
    finished(shelf.spec("pre-ln"))
    driver = {"class": "no_such_driver.FS", "err": "Install no_such_driver to access nowhere"}
    monkeypatch.setitem(known_implementations, "nowhere", driver)
    Path("others").mkdir()
    Path("others/notes.txt").write_text("mine")
    for url, said, hint in (
        ("gopher://host/x", "Protocol not known: gopher", "Give a folder, ssh://HOST/FOLDER"),
        ("nowhere://host/x", "a driver is missing: Install no_such_driver", "Install that package."),
        ("others", "others has other files, but no runs of comt push", "a folder of its own"),
        ("runs", "runs has other files, but no runs of comt push", "a folder of its own"),
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


def test_a_password_in_a_driver_s_error_is_not_printed(shelf: Shelf, monkeypatch):
    def refused(self, path, **options):
        raise ConnectionError("cannot log in to me:s3cret@host")

    monkeypatch.setattr(MemoryFileSystem, "ls", refused)
    with pytest.raises(UserError) as raised:
        raise comt("pull", "memory://me:s3cret@host/x").exception
    assert "cannot log in to me:***@host" in raised.value.message
    assert "s3cret" not in str(raised.value)


def test_a_password_that_is_empty_changes_no_message(shelf: Shelf):
    with pytest.raises(UserError, match="Protocol not known: gopher\n") as raised:
        raise comt("pull", "gopher://me:@host/x").exception
    assert "***" not in str(raised.value)


def test_a_full_disk_here_is_not_taken_for_the_url(shelf: Shelf, monkeypatch):
    finished(shelf.spec("pre-ln"))
    comt("push", "store")
    usual = Path.open

    class Full(io.BytesIO):
        def write(self, block):
            raise OSError(errno.ENOSPC, "No space left on device")

        def fileno(self):
            return os.open(".", os.O_RDONLY)

    def opened(path, mode="r", *given, **options):
        return Full() if ".pull-" in str(path) and "w" in mode else usual(path, mode, *given, **options)

    monkeypatch.setattr(Path, "open", opened)
    result = comt("pull", "store", "--runs", "other")
    assert isinstance(result.exception, StorageError)
    assert re.fullmatch(r"cannot write other/\S+spec.json: No space left on device", result.exception.message)


def test_what_was_pulled_before_an_error_is_told_by_the_status(shelf: Shelf, monkeypatch):
    for row in ("pre-ln", "a/b"):
        finished(shelf.spec(row))
    comt("push", "memory://store")
    opened, seen = MemoryFileSystem._open, set()

    def breaking(self, path, *given, **options):
        seen.add(path.split("/")[2])
        if len(seen) > 1:
            raise ConnectionError("connection lost")
        return opened(self, path, *given, **options)

    monkeypatch.setattr(MemoryFileSystem, "_open", breaking)
    result = comt("pull", "memory://store", "--runs", "other")
    assert isinstance(result.exception, StorageError)
    assert (result.exception.exit_status, result.exception.hint) == (1, "The same command goes on.")
    assert len(list(Path("other", BY_ID).glob("*/result.json"))) == 1


def test_a_url_that_may_not_be_written(shelf: Shelf, tmp_path):
    finished(shelf.spec("pre-ln"))
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
    finished(shelf.spec("pre-ln"))
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


def test_a_push_writes_whole_new_files_alone(shelf: Shelf, monkeypatch):
    """As the mount of a bucket needs it: nothing is extended, renamed or written twice."""
    written: list[str] = []
    usual = MemoryFileSystem._open

    def opened(self, path, mode="rb", **options):
        assert mode in ("rb", "wb")
        if mode == "wb":
            assert path not in written
            written.append(path)
        return usual(self, path, mode, **options)

    def refused(self, *paths, **options):
        raise NotImplementedError("no renaming")

    monkeypatch.setattr(MemoryFileSystem, "_open", opened)
    for name in ("mv", "copy", "cp_file"):
        monkeypatch.setattr(MemoryFileSystem, name, refused)
    spec = shelf.spec("pre-ln")
    for state in (5, 9):
        trained(spec, state)
        assert comt("push", "memory://store").exit_code == 0
    finished(spec)
    assert comt("push", "memory://store").exit_code == 0
    manifests = [path for path in written if path.endswith("manifest.json")]
    assert len(manifests) == 3
    assert written[-1] == manifests[-1]


# ---- what is lost


def copy(*names: str, step: int = 0, **logs: str) -> Copy:
    """Files whose content is their name, or as given; that of a checkpoint is also its step."""
    contents = {name: (name + str(step) * (name == "checkpoint.pt")).encode() for name in names}
    contents |= {f"{name}.jsonl": text.encode() for name, text in logs.items()}
    entries = {name: (len(content), sha256(content)) for name, content in contents.items()}

    def opened(name):
        return io.BytesIO(contents[name])

    return Copy(entries, opened, step, ",".join(sorted(contents)))


def test_what_is_lost_if_one_copy_replaces_another():
    begun = copy("checkpoint.pt", "spec.json", step=5, metrics="ab", timings="9")
    later = copy("checkpoint.pt", step=9, metrics="abc", timings="7.5")
    done = copy("checkpoint.pt", "result.json", metrics="abcd", timings="8")
    light = copy("result.json", metrics="abcd", timings="8")
    other = copy("checkpoint.pt", "result.json", metrics="axcd", timings="9")
    slower = copy("checkpoint.pt", "result.json", metrics="abcd", timings="80")
    assert [
        loss(old, new) for old, new in ((begun, later), (later, done), (begun, done), (light, done), (done, done))
    ] == [None] * 5
    assert loss(later, begun) == "checkpoint.pt differs"
    assert loss(done, slower) == "timings.jsonl differs", "of a finished run, its own count"
    assert loss(begun, other) == "metrics.jsonl differs"
    assert loss(done, other) == "metrics.jsonl differs"
    assert loss(done, light) == "checkpoint.pt is missing"
    assert loss(done, light, stays=True) is None
    assert loss(begun, light) == "checkpoint.pt is missing"  # nothing would belong to the result
    assert loss(done, later, stays=True) is not None
    assert loss(copy(timings="a", metrics="a"), copy("result.json", metrics="ab")) == "timings.jsonl is missing"


def test_of_two_states_with_the_same_lines_the_later_one_is_kept(shelf: Shelf):
    """`train.log_every` may be larger than `train.save_every`, and Ctrl-C saves too."""
    spec = shelf.spec("pre-ln")

    def saved(step: int, runs: str) -> RunDirectory:
        directory = trained(spec, 2, runs=runs)
        save(directory, {"metrics": directory.metrics_file.stat().st_size}, b"%d" % step, step)
        return directory

    here, there = saved(100, "runs"), saved(150, "other")
    later = there.checkpoint_file.read_bytes()
    assert "1 sent" in comt("push", "store").output
    assert "1 sent" in comt("push", "store", "--runs", "other").output
    assert "1 there before" in comt("push", "store").output
    assert "1 received" in comt("pull", "store").output
    assert here.checkpoint_file.read_bytes() == later
    shutil.copytree("store", "both")
    shutil.rmtree("store")
    saved(100, "runs")
    comt("push", "store")
    for first, second in (("both", "store"), ("store", "both")):
        shutil.copytree(first, f"{first} and {second}")
        shutil.copytree(second, f"{first} and {second}", dirs_exist_ok=True)
        assert "1 received" in comt("pull", f"{first} and {second}", "--runs", f"of {first}").output
        assert RunDirectory.of(Path(f"of {first}"), spec).checkpoint_file.read_bytes() == later
