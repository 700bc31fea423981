"""Copies of runs at a URL, which `comt push` writes and `comt pull` reads, through fsspec. Torch-free.

URL/<id>/<version>/...             the files of a run, with the names that they have in its directory
URL/<id>/<version>/manifest.json   written last: {name: {"size": bytes, "sha256": digits}}

`version` is a hash of the manifest. Every file is written once, from its start to its end, and never renamed or
extended: object stores, and file systems that mount them, can do no more. A later state of a run is another version,
which replaces the earlier one if nothing is lost (`loss`). What a killed transfer leaves has no manifest, and counts as
absent. Nothing that is read is trusted, and nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickletools
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, NamedTuple

from pydantic import NonNegativeInt, TypeAdapter

from comt_cli.data.storage import first_line, state_of
from comt_cli.errors import StorageError, UserError, of_surroundings
from comt_cli.files import Cache, canonical_json, make_folder, open_file, sha256
from comt_cli.installing import install_package
from comt_cli.recipe.settings import Section, matching
from comt_cli.runs.directory import BeingTrained, RunDirectory
from comt_cli.runs.known import KnownRun
from comt_cli.runs.plan import BY_ID, RunSpec

MANIFEST, SPEC, RESULT, CHECKPOINT = "manifest.json", "spec.json", "result.json", "checkpoint.pt"
FORMS = "Give a folder, ssh://HOST/FOLDER, s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, or another URL of fsspec."
WITHOUT_FOLDERS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "oci", "oss", "tos"}
"""Object stores: to make a folder there could make a bucket."""
BLOCK = 2**22

_UNFINISHED = r"(spec|environment)\.json|(metrics|timings|gradients)\.jsonl|(checkpoint|(best|weights)-\d{1,9})\.pt"
_FINISHED = rf"{_UNFINISHED}|result\.json|metrics\.csv|outputs/final/\w[\w.-]*\.txt|evaluations/\w[\w.,@+=-]*\.json"
_PLACE = re.compile(r"([0-9a-f]{12}/[0-9a-f]{16})/(.+)")
_LOG = ".jsonl"

Report = Callable[[int], None]
"""Called with the size of every block that was sent or received."""


class Entry(Section):
    """Size and hash of a file."""

    size: NonNegativeInt
    sha256: Annotated[str, matching(r"[0-9a-f]{64}", "is no SHA-256")]


_MANIFEST = TypeAdapter(dict[Annotated[str, matching(_FINISHED, "is no file of a run")], Entry])


@dataclass(frozen=True)
class Copy:
    """The files of a run at one place, and a function that opens one for reading; at a URL, the `folder`."""

    files: Mapping[str, Entry]
    open: Callable[[str], AbstractContextManager[IO[bytes]]]
    folder: str = ""

    def begins_with(self, entry: Entry, name: str) -> bool:
        """Whether the file `name` has the content of `entry`, or begins with it."""
        own = self.files.get(name)
        if own is None or own.size <= entry.size:
            return own == entry
        with self.open(name) as source:
            return _digest(_blocks(source, entry.size)) == entry.sha256


class Outcome(NamedTuple):
    """What came of a run: a word, the reason if there is a problem, and the transferred bytes."""

    word: str
    problem: str | None = None
    size: int = 0


def loss(old: Copy, new: Copy, *, stays: bool = False) -> str | None:
    """What would be lost if `new` replaced `old`, in words; None if nothing.

    `new` must have every file of a finished run (unless the file `stays`), with the same content. The logs of an
    unfinished run, up to its last checkpoint, must continue in `new`, which is then a later state of the same training.
    """
    for name, entry in old.files.items():
        other = new.files.get(name)
        if RESULT in old.files:
            is_lost = other != entry and not (stays and other is None and RESULT in new.files)
        else:
            is_lost = not new.begins_with(entry, name) if name.endswith(_LOG) else name == CHECKPOINT and other is None
        if is_lost:
            return f"{name} {'is missing' if other is None else 'differs'}"
    return None


def latest(versions: Sequence[Copy]) -> Copy | None:
    """The version that can replace all others; None if there is none."""
    return next((new for new in versions if not any(loss(old, new) for old in versions if old is not new)), None)


def copy_of(directory: RunDirectory, stack: ExitStack, *, weights: bool = True) -> Copy:
    """The copy of a run directory, whose files stay open in `stack`. An unfinished run, which may be being trained, is
    copied at its last checkpoint, with the logs up to there; without a checkpoint (or `weights`) its copy is empty.
    Raises `UserError` if the checkpoint is damaged, or replaced at this moment; `OSError`."""
    opened: dict[str, IO[bytes]] = {}
    lengths: dict[str, int] = {}
    is_finished = directory.result_file.exists()
    if not is_finished:
        if not weights or not directory.checkpoint_file.exists():
            return Copy({}, contextlib.nullcontext)  # type: ignore[arg-type]  # there is no file to open
        opened[CHECKPOINT] = stack.enter_context(open_file(directory.checkpoint_file))
        lengths = logged_bytes(opened[CHECKPOINT], directory.checkpoint_file)
    for path in [path for part in ("*", "outputs/final/*", "evaluations/*") for path in directory.path.glob(part)]:
        name = path.relative_to(directory.path).as_posix()
        is_wanted = re.fullmatch(_FINISHED if is_finished else _UNFINISHED, name) and (weights or path.suffix != ".pt")
        if is_wanted and name not in opened and path.is_file() and not path.is_symlink():
            opened[name] = stack.enter_context(open_file(path))
    # Training appends to logs, and removes the weights that belong to a checkpoint after it wrote the next one.
    if not is_finished and not os.path.samestat(
        os.fstat(opened[CHECKPOINT].fileno()), directory.checkpoint_file.stat()
    ):
        raise UserError(f"{directory.shown} saves at this moment", "Give the command again.")
    cache, files, states = Cache("transferred-files", "1"), {}, {}
    known = cache.get(str(directory.path.absolute())) or {}
    for name, handle in opened.items():
        status = os.fstat(handle.fileno())
        if size := lengths.get(name, status.st_size):
            state = [size, *state_of(status)]
            *before, digest = known.get(name) or [None]
            handle.seek(0)
            digest = digest if before == state else _digest(_blocks(handle, size))
            files[name], states[name] = Entry(size=size, sha256=digest), [*state, digest]
    cache.put(str(directory.path.absolute()), states)

    def reopened(name: str) -> AbstractContextManager[IO[bytes]]:
        opened[name].seek(0)
        return contextlib.nullcontext(opened[name])

    return Copy(files, reopened)


def logged_bytes(checkpoint: IO[bytes], path: Path) -> dict[str, int]:
    """The lengths of logs that a checkpoint states (`training.checkpoint.Counters`), by file name. They are found among
    the instructions of its pickle, of which none is carried out. Raises `UserError` if it is damaged."""
    found: dict[str, int] = {}
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            (record,) = [each for each in archive.infolist() if each.filename.endswith("/data.pkl")]
            if record.compress_type != zipfile.ZIP_STORED:
                raise ValueError("it is compressed")
            key = ""
            for code, value, _ in pickletools.genops(archive.read(record)):
                if isinstance(value, str):
                    key = value
                elif key.endswith("_bytes") and isinstance(value, int) and not code.name.endswith("PUT"):
                    found[key.removesuffix("_bytes") + _LOG], key = value, ""
        if not found:
            raise ValueError("it states no step")
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}", "Train the run again.") from None
    return found


def _blocks(source: IO[bytes], size: int) -> Iterator[bytes]:
    while size > 0 and (block := source.read(min(size, BLOCK))):
        yield block
        size -= len(block)


def _digest(blocks: Iterable[bytes], *then: Callable[[bytes], object]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
        for call in then:
            call(block)
    return digest.hexdigest()


class Store:
    """The copies of runs at a URL. Methods raise `UserError` if the URL cannot be used."""

    def __init__(self, url: str, report: Report) -> None:
        from fsspec.core import url_to_fs

        self.url = re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1@", url).rstrip("/")  # without a password
        self._report, self._has_written = report, False
        self._leftovers: set[str] = set()  # versions without a manifest
        try:
            self.fs, root = url_to_fs(url)
        except ImportError as error:
            module = str(getattr(error.__cause__ or error, "name", None)).partition(".")[0]
            package = {"smbclient": "smbprotocol"}.get(module, module)
            raise UserError(f"{self.url}: a driver is missing: {first_line(error)}", install_package(package)) from None
        except Exception as error:  # each driver has its own kinds
            raise UserError(f"{self.url} cannot be used: {first_line(error)}", FORMS) from None
        self.root, self._has_folders = str(root).rstrip("/"), url.partition("://")[0] not in WITHOUT_FOLDERS

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # each driver has its own kinds
            told = of_surroundings(error) or UserError(f"{self.url}: {first_line(error)}")
            raise StorageError(told.message, "The same command goes on.") if self._has_written else told from error

    def versions(self) -> tuple[dict[str, list[Copy]], dict[str, str]]:
        """The complete versions of each run by id; and by `id/version` why others cannot be read. Raises `UserError` if
        there are other files only."""
        with self._reaching():
            try:
                self.fs.ls(self.root, detail=False)  # `find` takes a folder that must not be read for an empty one
                listed = self.fs.find(self.root, detail=True)
            except FileNotFoundError:
                listed = {}
            sizes = {path[len(self.root) :].lstrip("/"): info["size"] for path, info in listed.items()}
            places = [found for path in sizes if (found := _PLACE.fullmatch(path))]
            if sizes and not places:
                of_runs = any(path.startswith(f"{BY_ID}/") for path in sizes)
                said = "is a folder of runs itself" if of_runs else "has other files, but no runs of comt push"
                raise UserError(f"{self.url} {said}", "Use it by --runs." if of_runs else "Give a folder of its own.")
            folders = sorted(found[1] for found in places if found[2] == MANIFEST)
            self._leftovers = {found[1] for found in places} - {*folders}
            contents = self.fs.cat([f"{self.root}/{each}/{MANIFEST}" for each in folders]) if folders else {}
        whole: dict[str, list[Copy]] = {}
        refused: dict[str, str] = {}
        for folder in folders:
            run, version = folder.split("/")
            content = contents[f"{self.root}/{folder}/{MANIFEST}"]
            try:
                if sha256(content)[:16] != version:
                    raise ValueError("its manifest is damaged")
                files = _MANIFEST.validate_json(content, strict=True)
                for name in {SPEC, *files}:
                    if name not in files or sizes.get(f"{folder}/{name}") != files[name].size:
                        raise ValueError(f"{name} is missing or was cut off")
            except ValueError as error:
                refused[folder] = " ".join(str(error).split())
            else:
                whole.setdefault(run, []).append(Copy(files, self._opener(folder), f"{self.root}/{folder}"))
        return whole, refused

    def _opener(self, folder: str) -> Callable[[str], AbstractContextManager[IO[bytes]]]:
        @contextlib.contextmanager
        def opened(name: str) -> Iterator[IO[bytes]]:
            with self._reaching(), self.fs.open(f"{self.root}/{folder}/{name}", "rb") as source:
                yield source

        return opened

    def push(self, run: KnownRun, there: Sequence[Copy], *, weights: bool) -> Outcome:
        """Write a version of a run, in place of those `there`; or say why not."""
        with ExitStack() as stack:
            try:
                here = copy_of(run.directory, stack, weights=weights)
            except (UserError, OSError) as error:
                return Outcome("not sent", first_line(error))
            if not here.files:
                return Outcome("without a checkpoint to send")
            newest = latest(there)
            if newest is not None and loss(here, newest) is None:
                self._remove(old.folder for old in there if old is not newest)
                return Outcome("there before")
            if there and newest is None:
                return Outcome("differ", f"{self.url} has two trainings of it. Nothing was replaced.")
            if newest is not None and (lost := loss(newest, here)):
                return Outcome("differ", f"compared with {self.url}, {lost} here. Nothing was replaced.")
            manifest = canonical_json({name: entry.model_dump() for name, entry in here.files.items()}).encode()
            folder = f"{self.root}/{run.id}/{sha256(manifest)[:16]}"
            for name, entry in sorted(here.files.items(), key=lambda each: each[1].size):
                with here.open(name) as source:
                    self._put(f"{folder}/{name}", _blocks(source, entry.size), entry)
            self._put(f"{folder}/{MANIFEST}", [manifest], Entry(size=len(manifest), sha256=sha256(manifest)))
        left = [f"{self.root}/{each}" for each in self._leftovers if each.startswith(run.id)]
        self._remove({*left, *(old.folder for old in there)} - {folder})
        return Outcome("sent", size=sum(entry.size for entry in here.files.values()))

    def _put(self, path: str, blocks: Iterable[bytes], entry: Entry) -> None:
        with self._reaching():
            if self._has_folders:
                self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self.fs.open(path, "wb") as target:
                self._has_written = True
                digest = _digest(blocks, target.write, lambda block: self._report(len(block)))
            if digest != entry.sha256 or self.fs.size(path) != entry.size:
                raise StorageError(f"{path} did not arrive whole", "Give the command again.")

    def _remove(self, folders: Iterable[str]) -> None:
        """Remove versions. One that cannot be removed stays, and is not read."""
        for folder in folders:
            with contextlib.suppress(Exception):
                self.fs.rm(folder, recursive=True)

    def fetch(self, there: Copy, name: str, path: Path) -> bool:
        """Read a file of a version; returns whether it is the one of the manifest, else removes it. Raises also
        `OSError`."""
        make_folder(path.parent)
        with there.open(name) as source, path.open("wb") as target:
            blocks = _blocks(source, there.files[name].size)
            digest = _digest(blocks, target.write, lambda block: self._report(len(block)))
            target.flush()
            os.fsync(target.fileno())
        if digest != there.files[name].sha256:
            path.unlink()
        return path.exists()

    def pull(self, spec: RunSpec, runs: Path, there: Copy, *, weights: bool) -> Outcome:
        """Read a version of the run `spec` into `runs`; or say why not. Its files are read to another folder and
        checked. A new run's folder is then renamed; else the run is locked, and the files are moved to it, logs before
        the checkpoint and the result last: it can be resumed at any moment. Raises also `OSError`."""
        there = replace(
            there, files={name: each for name, each in there.files.items() if weights or name[-3:] != ".pt"}
        )
        if RESULT not in there.files and CHECKPOINT not in there.files:
            return Outcome("without a checkpoint to receive")
        directory, aside = RunDirectory.of(runs, spec), runs / BY_ID / f".pull-{spec.id}"
        shutil.rmtree(aside, ignore_errors=True)  # of a killed transfer
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, aside, ignore_errors=True)
            if is_here := directory.path.exists():
                try:
                    stack.enter_context(directory.lock())
                except BeingTrained as busy:
                    return Outcome("in use here", busy.message)
            here = copy_of(directory, stack)
            if here.files and loss(there, here) is None:
                return Outcome("here before")
            if lost := loss(here, there, stays=True):
                return Outcome("differ", f"compared with {directory.shown}, {lost} there. Nothing was replaced.")
            names = [name for name, entry in there.files.items() if here.files.get(name) != entry]
            for name in names:
                if not self.fetch(there, name, aside / name):
                    return Outcome("damaged", f"the checksum of {name} is wrong. Delete {there.folder}; push it again.")
            if not is_here:
                aside.rename(directory.path)
            for name in sorted(names if is_here else (), key=lambda name: (name == RESULT, name == CHECKPOINT)):
                make_folder((directory.path / name).parent)
                (aside / name).replace(directory.path / name)
            for path in directory.path.glob("*-*.pt") if CHECKPOINT in names else ():
                if re.fullmatch(_FINISHED, path.name) and path.name not in there.files:
                    path.unlink()  # weights that belong to an earlier checkpoint
            directory.error_file.unlink(missing_ok=True)
        directory.link(spec.changed)
        return Outcome("received", size=sum(there.files[name].size for name in names))
