"""Copies of runs at a URL, which `comt push` writes and `comt pull` reads, through fsspec.

URL/<id>/<version>/...             the files of a run, with the names that they have in its directory
URL/<id>/<version>/manifest.json   written last: {"step": of an unfinished run, "files": {name: [bytes, SHA-256]}}

Every push writes a version of its own, so that several can push at once. No file is written twice, extended or renamed:
mounts of object stores can do no more. A version is removed when one that loses nothing of it is complete (`loss`).
What a killed push left has no manifest, and counts as absent. Nothing that is read is trusted.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from comt_cli.data.storage import first_line, hash_files, no_progress
from comt_cli.errors import StorageError, UserError, of_surroundings
from comt_cli.files import atomic_file, canonical_json, make_folder, open_file, parse_json, sha256
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import BY_ID

MANIFEST, SPEC, RESULT, CHECKPOINT, LOG = "manifest.json", "spec.json", "result.json", "checkpoint.pt", ".jsonl"
TIMINGS, REPLACED = "timings.jsonl", "another command replaced it at the URL meanwhile; give the command again"
BLOCK = 2**22
_UNFINISHED = r"(spec|environment)\.json|(metrics|timings|gradients)\.jsonl|(checkpoint|(best|weights)-\d{1,9})\.pt"
_FINISHED = rf"{_UNFINISHED}|result\.json|metrics\.csv|outputs/final/\w[\w.-]*\.txt|evaluations/\w[\w.,@+=-]*\.json"
_PLACE = re.compile(r"([0-9a-f]{12}/[0-9a-f]{16})/(.+)")


@dataclass(frozen=True)
class Copy:
    """The files of a run with their sizes and hashes, and a function that opens one; of an unfinished run, the last
    saved `step`; at a URL, the `folder`."""

    files: Mapping[str, tuple[int, str]]
    open: Callable[[str], AbstractContextManager[IO[bytes]]]
    step: int = 0
    folder: str = ""


def loss(old: Copy, new: Copy, *, stays: bool = False) -> str | None:
    """What would be lost if `new` replaced `old`, in words; None if nothing.

    `new` must have every file of a finished run (unless the file `stays`), with the same content. The logs of an
    unfinished run, up to its last checkpoint, must continue in `new`, whose checkpoint must not be an earlier one: then
    it is a later state of the same training. Its timings may differ, as they do between machines.
    """
    for name, entry in old.files.items():
        other = new.files.get(name)
        is_same = other == entry
        if RESULT in old.files:
            is_same |= stays and other is None and RESULT in new.files
        elif name == CHECKPOINT:
            is_same = other is not None and (RESULT in new.files or new.step >= old.step)
        elif name == TIMINGS or not name.endswith(LOG):
            is_same = name != TIMINGS or other is not None
        elif other is not None and other[0] > entry[0]:
            with new.open(name) as source:
                is_same = _digest(source, entry[0]) == entry[1]
        if not is_same:
            return f"{name} {'is missing' if other is None else 'differs'}"
    return None


def copy_of(directory: RunDirectory, stack: ExitStack) -> Copy:
    """The copy of a run directory, whose files stay open in `stack`. An unfinished run, which may be being trained, is
    copied at its last checkpoint, with the logs up to there; without a checkpoint its copy is empty. Raises `UserError`
    if the checkpoint is damaged, or replaced at this moment; `OSError`."""
    path, is_finished, checkpoint = directory.path, directory.result_file.exists(), directory.checkpoint_file
    opened: dict[str, IO[bytes]] = {}
    if is_finished or checkpoint.exists():
        found = [file for part in ("*", "outputs/final/*", "evaluations/*") for file in path.glob(part)]
        for file in sorted(found, key=lambda file: file != checkpoint):  # training appends to logs before it saves
            name = file.relative_to(path).as_posix()
            if re.fullmatch(_FINISHED if is_finished else _UNFINISHED, name) and not file.is_symlink():
                opened[name] = stack.enter_context(open_file(file))

    def reopened(name: str) -> AbstractContextManager[IO[bytes]]:
        opened[name].seek(0)
        return contextlib.nullcontext(opened[name])

    ends: dict[str, int] = {}
    digests: dict[str, str] = {}
    if is_finished:
        digests = dict(zip(opened, hash_files([path / name for name in opened], no_progress, "runs"), strict=True))
    elif opened:
        # Training removes the weights that belong to a checkpoint after it wrote the next one.
        number = opened[CHECKPOINT].fileno()
        if not os.path.samestat(os.fstat(number), checkpoint.stat()):
            raise UserError(f"{directory.shown} saves at this moment; give the command again")
        from comt_cli.exchange.checkpoint import read_own  # with torch

        try:  # not by its name: it may be replaced meanwhile
            ends = read_own(Path(f"/dev/fd/{number}"), path.name, parts=False)["progress"]
        except UserError as error:
            raise UserError(error.message.replace(f"/dev/fd/{number}", str(checkpoint))) from None
    files = {}
    for name, handle in opened.items():
        size = ends.get(name.replace(LOG, "_bytes"), os.fstat(handle.fileno()).st_size)
        handle.seek(0)
        files[name] = size, digests.get(name) or _digest(handle, size)
    return Copy(files, reopened, ends.get("step", 0))


def _digest(source: IO[bytes], size: int, write: Callable[[bytes], object] | None = None) -> str:
    """SHA-256 of the next `size` bytes, which `write` is also given."""
    digest = hashlib.sha256()
    while size > 0 and (block := source.read(min(size, BLOCK))):
        digest.update(block)
        size -= len(block)
        if write is not None:
            write(block)
    return digest.hexdigest()


class Store:
    """The copies of runs at a URL. `damaged`: why versions cannot be read. Methods raise `StorageError` if the URL or
    the disk cannot be used; other `UserError` and `OSError` if one run cannot be copied."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        found = re.match(r"[^:/]+://[^/:@]*:([^/]*)@", url)
        self._secret, self._has_written, self.damaged = (found and found[1]) or "\0", False, dict[str, str]()
        self.url = url.replace(f":{self._secret}@", "@").rstrip("/")
        try:
            self.fs, root = url_to_fs(url)
        except ImportError as error:  # the message names the package
            raise UserError(f"{self.url}: a driver is missing: {self._said(error)}", "Install that package.") from None
        except Exception as error:  # each driver has its own kinds
            forms = "a folder, ssh://HOST/FOLDER, s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, or another URL of fsspec"
            raise UserError(f"{self.url} cannot be used: {self._said(error)}", f"Give {forms}.") from None
        self.root = str(root).rstrip("/")

    def _said(self, error: Exception) -> str:
        return first_line(error).replace(self._secret, "***")

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            told = of_surroundings(error) or UserError(f"{self.url}: {self._said(error)}")
            failed = StorageError(told.message, "The same command goes on." if self._has_written else told.hint)
            failed.exit_status = 1 if self._has_written else 2
            raise failed from error

    def versions(self) -> dict[str, list[Copy]]:
        """The complete versions of each run, by its id."""
        with self._reaching():
            try:
                self.fs.ls(self.root, detail=False)  # `find` takes a folder that must not be read for an empty one
                listed = self.fs.find(self.root, detail=True)
            except FileNotFoundError:
                return {}
            sizes = {path[len(self.root) :].lstrip("/"): info["size"] for path, info in listed.items()}
            places = [found for path in sizes if (found := _PLACE.fullmatch(path))]
            if sizes and not places:
                raise UserError(f"{self.url} has other files, but no runs of comt push", "Give a folder of its own.")
            folders = {f"{self.root}/{found[0]}": found[1] for found in places if found[2] == MANIFEST}
            contents = self.fs.cat_ranges([*folders], None, None, on_error="return")  # `cat` would expand wildcards
        whole: dict[str, list[Copy]] = {}
        for folder, content in zip(folders.values(), contents, strict=True):
            if isinstance(content, FileNotFoundError) or content == b"":
                continue  # another push replaced it, or was killed here
            try:
                stated = parse_json(content)
                if not {"step", "files"} <= stated.keys():
                    self.damaged[folder] = (
                        f"not read: another version of comt wrote its {MANIFEST}; pull it with that one"
                    )
                    continue
                files = {str(name): (size, digest) for name, (size, digest) in stated["files"].items()}
                for name in {SPEC, *files}:
                    if re.fullmatch(_FINISHED, name) is None:
                        raise ValueError(f"{name!r} is no file of a run")
                    if name not in files or sizes.get(f"{folder}/{name}") != files[name][0]:
                        raise ValueError(f"{name} is missing or was cut off")
                there = Copy(files, functools.partial(self._opened, folder), int(stated["step"]), folder)
            except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as error:
                said = self._said(content if isinstance(content, Exception) else error)
                self.damaged[folder] = f"damaged: {said}; delete {self.url}/{folder}, and push the run again"
            else:
                whole.setdefault(folder[:12], []).append(there)
        return whole

    @contextlib.contextmanager
    def _opened(self, folder: str, name: str) -> Iterator[IO[bytes]]:
        with self._reaching():
            try:
                with self.fs.open(f"{self.root}/{folder}/{name}", "rb") as source:
                    yield source
            except FileNotFoundError:
                raise UserError(REPLACED) from None

    def push(self, directory: RunDirectory, there: Sequence[Copy]) -> tuple[str, int]:
        """Write a version of a run, in place of those `there`. Returns what was done, and the bytes."""
        with ExitStack() as stack:
            here = copy_of(directory, stack)
            if not here.files:
                return "without a checkpoint to send", 0
            if any(loss(here, old) is None for old in there):
                return "there before", 0
            if lost := next((lost for old in there if (lost := loss(old, here))), None):
                raise UserError(f"compared with {self.url}, {lost} here; nothing was replaced")
            folder = f"{self.root}/{directory.path.name}/{secrets.token_hex(8)}"
            for name, entry in sorted(here.files.items(), key=lambda each: each[1]):
                with here.open(name) as source:
                    self._put(f"{folder}/{name}", source, *entry)
            manifest = canonical_json({"step": here.step, "files": here.files}).encode()
            self._put(f"{folder}/{MANIFEST}", io.BytesIO(manifest), len(manifest), sha256(manifest))
        for old in there:
            with contextlib.suppress(Exception):  # one that cannot be removed stays, and is not read
                self.fs.rm(f"{self.root}/{old.folder}/{MANIFEST}")  # first, so that no part looks whole
                self.fs.rm(f"{self.root}/{old.folder}", recursive=True)
        return "sent", sum(size for size, _ in here.files.values())

    def _put(self, path: str, source: IO[bytes], size: int, digest: str) -> None:
        with self._reaching():
            if not self.fs.async_impl:  # drivers of object stores are asynchronous; a folder there could be a bucket
                self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self.fs.open(path, "wb") as target:
                self._has_written = True
                is_same = _digest(source, size, target.write) == digest
            if not is_same or self.fs.size(path) != size:
                raise UserError(f"{path} did not arrive whole; give the command again")

    def _fetch(self, there: Copy, name: str, path: Path) -> None:
        make_folder(path.parent)
        size, digest = there.files[name]

        def write(block: bytes) -> None:
            try:
                target.write(block)
            except OSError as error:  # else it would pass for one of the URL
                raise StorageError(f"cannot write {path}: {error.strerror}", "Make room, and repeat it.") from error

        with atomic_file(path) as target, there.open(name) as source:
            is_same = _digest(source, size, write) == digest
        if not is_same:
            bad = f"{self.url}/{there.folder}"
            with self._reaching():
                self.fs.invalidate_cache()
                if not self.fs.exists(f"{self.root}/{there.folder}/{MANIFEST}"):
                    raise UserError(REPLACED)
            raise UserError(f"damaged: the checksum of {name} is wrong; delete {bad}, and push the run again")

    def pull(self, runs: Path, run: str, versions: Sequence[Copy]) -> tuple[str, int]:
        """Read the latest of a run's versions into `runs`: all files to another folder, where they are checked. A new
        run's folder is then renamed; else the run is locked, and the files are moved to it, the checkpoint after the
        logs and the result last, so that it can be resumed at any moment. Returns what was done, and the bytes."""
        there = next((new for new in versions if not any(loss(old, new) for old in versions if old is not new)), None)
        if there is None:
            raise UserError(f"{self.url} has two trainings of it; neither was copied")
        aside = runs / BY_ID / f".pull-{run}"
        shutil.rmtree(aside, ignore_errors=True)  # of a killed transfer
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, aside, ignore_errors=True)
            self._fetch(there, SPEC, aside / SPEC)
            spec = RunDirectory(aside).spec()
            if spec.id != run:
                raise UserError(f"its {SPEC} is that of run {spec.id}")
            directory = RunDirectory.of(runs, spec)
            if is_here := directory.path.exists():
                stack.enter_context(directory.lock())
            here = copy_of(directory, stack)
            if here.files and loss(there, here) is None:
                return "here before", 0
            if lost := loss(here, there, stays=True):
                raise UserError(f"compared with {directory.shown}, {lost} there; nothing was replaced")
            names = [name for name, entry in there.files.items() if here.files.get(name) != entry or name == SPEC]
            for name in names:
                self._fetch(there, name, aside / name)
            self._has_written = True
            if not is_here:
                aside.rename(directory.path)
            for name in sorted(names if is_here else (), key=lambda name: (name == RESULT, name == CHECKPOINT)):
                make_folder((directory.path / name).parent)
                (aside / name).replace(directory.path / name)
            if RESULT in there.files:
                directory.keep_best(None)
            directory.error_file.unlink(missing_ok=True)
        directory.link(spec.changed)
        return "received", sum(there.files[name][0] for name in names)
