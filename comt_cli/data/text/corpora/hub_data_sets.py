"""`hf:NAME[@REVISION][:CONFIG][#COLUMN]`: any text data set of the Hugging Face hub.

Its `train` split is read, and for validation its own validation split or a share of its documents. A `test` split is
never read. The commit and its list of files are found once and kept in the cache: a preparation that was stopped, and
others of the same data set, read the same. Files are read in a seeded order, because they are often sorted. Data sets
with scripts, and files of other formats than `columns` has, are read from the hub's conversion to Parquet.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from comt_cli.data import hub
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.text.columns import COLUMN, format_of, read_column
from comt_cli.data.text.corpora.hub_text import FILE_ORDER_SEED, HubText
from comt_cli.data.text.settings import Corpus, Document, Place, Stream, TextSettings
from comt_cli.errors import UserError
from comt_cli.files import Cache
from comt_cli.recipe.problems import nearest

CONVERTED = "refs/convert/parquet"
VALIDATION = ("validation", "valid", "val", "dev", "eval")
_CONVERTED_FILE = re.compile(r"([^/]+)/([^/]+)/[^/]+\.parquet")
_CONVERT = "Download and convert it to Parquet, then use corpus: files:GLOB#COLUMN"

Files = dict[str, list[str]]  # of each split


class HubDataSet(Corpus):
    """A data set of the hub, fetched when its streams are read. With `max_train_tokens`, reading stops there."""

    pattern = r"hf:(?P<name>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[^:#]+))?(:(?P<config>[^#]+))?(#(?P<column>.+))?"
    said = "hf:NAME[@REVISION][:CONFIG][#COLUMN], a data set of the Hugging Face hub"
    keys: ClassVar[Mapping[str, Any]] = {"validation_fraction": None}
    is_own_text = True
    validation_tokens = HubText.validation_tokens

    def __init__(self, data: TextSettings) -> None:
        super().__init__(data)
        self.endless = data.max_train_tokens is not None
        asked: Any = re.fullmatch(self.pattern, data.corpus)
        self.name, self._revision, self.config = asked.group("name", "revision", "config")
        self.column = asked["column"] or COLUMN
        command = f"hf download {self.name} --repo-type dataset --local-dir FOLDER"
        instead = f"Without network: {command} (elsewhere), then corpus: files:FOLDER/**/*.parquet#{self.column}"
        self._reachable = functools.partial(hub.reachable, data.corpus, self.name, instead)

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        asked, most = [self.name, self._revision, self.config, self.column], self.validation_tokens
        return {"corpus": "hf", "data_set": asked, "file_order_seed": FILE_ORDER_SEED, "validation_tokens": most}

    @property
    def revision(self) -> str:
        return str(self._found["revision"])

    def streams(self) -> Sequence[Stream]:
        files: Files = self._found["files"]
        if "train" not in files:
            said = f"corpus: {self.data.corpus} has no split named train; its splits: {', '.join(files)}"
            raise UserError(said, "Download it, and give its files: corpus: files:GLOB#COLUMN")
        train = functools.partial(self._documents, files["train"])
        for own in VALIDATION if self.data.validation_fraction is None else ():
            if own in files:
                held = functools.partial(self._documents, files[own])
                return [Stream("validation", held), Stream("train", train)]
        return [Stream(None, train)]

    def _documents(self, files: Sequence[str], start: Place) -> Iterator[Document]:
        repository, order = self._found["repository"], [*files]
        random.Random(FILE_ORDER_SEED).shuffle(order)
        with self._reachable():
            from huggingface_hub import HfFileSystem

            for number, path in enumerate(order[start[0] :], start[0]):
                first = start[1] if number == start[0] else 0
                with HfFileSystem().open(f"datasets/{repository}@{self.revision}/{path}", "rb") as file:
                    for row, text in read_column(file, f"{repository}/{path}", self.column, first):
                        yield Document(text, (number, row))

    @cached_property
    def _found(self) -> dict[str, Any]:
        """Repository, commit and files of each split; asked of the hub once."""
        cache, key = Cache("hub", "1"), [self.name, self._revision, self.config]
        if (known := cache.get(key)) is None:
            with self._reachable():
                known = self._ask(self._revision)
            cache.put(key, known)
        return dict(known)

    def _ask(self, revision: str | None) -> dict[str, Any]:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import RevisionNotFoundError

        info = HfApi().dataset_info(self.name, revision=revision)
        names = [each.rfilename for each in info.siblings or ()]
        files = self._converted(names) if revision == CONVERTED else self._own(info.id, str(info.sha))
        others = {Path(path).suffix for paths in files.values() for path in paths if format_of(path) is None}
        if files and not others:
            return {"repository": info.id, "revision": info.sha, "files": files}
        if revision is None:
            with contextlib.suppress(RevisionNotFoundError):
                return self._ask(CONVERTED)
        what = f"files of other formats ({', '.join(sorted(others))})" if others else "no data"
        raise UserError(f"corpus: {self.data.corpus} has {what}, and the hub has not converted it to Parquet", _CONVERT)

    def _own(self, repository: str, revision: str) -> Files:
        """The files of the splits, as `datasets` finds them; none where it needs a script or knows none."""
        import datasets

        try:
            builder = datasets.load_dataset_builder(repository, self.config, revision=revision)
        except ValueError:
            self._check_config(datasets.get_dataset_config_names(repository, revision=revision))
            raise
        except (datasets.data_files.EmptyDatasetError, datasets.exceptions.DataFilesNotFoundError):
            return {}
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            return {}
        files, root = builder.config.data_files or {}, f"hf://datasets/{repository}@{revision}/"
        if not all(path.startswith(root) for paths in files.values() for path in paths):
            said = f"corpus: the folder {repository} in {Path.cwd()} hides the data set of that name"
            raise UserError(said, "Run the command in another folder.")
        return {str(split): [path.removeprefix(root) for path in paths] for split, paths in files.items()}

    def _converted(self, paths: Sequence[str]) -> Files:
        """The files of the splits in the hub's conversion: CONFIG/SPLIT/0000.parquet."""
        found: dict[str, Files] = {}
        for path in sorted(paths):
            if part := _CONVERTED_FILE.fullmatch(path):
                found.setdefault(part[1], {}).setdefault(part[2], []).append(path)
        if self.config is not None or "default" not in found:
            self._check_config([*found])
        files = found.get(self.config or "default") or next(iter(found.values()), {})
        if cut := [split for split in files if split.startswith("partial-")]:
            said = f"corpus: the hub has converted only the beginning of {self.name} to Parquet ({', '.join(cut)})"
            raise UserError(said, _CONVERT)
        return files

    def _check_config(self, known: Sequence[str]) -> None:
        """Raise `UserError` if a configuration has to be named and is not, or is none of these."""
        if self.config is not None and known and self.config not in known:
            raise UserError(f"corpus: {self.name} has no configuration {self.config!r}", nearest(self.config, known))
        if self.config is None and len(known) > 1:
            said = f"corpus: {self.name} has several configurations, of which {self.data.corpus} names none"
            raise UserError(said, f"Choose one, as in hf:{self.name}:{known[0]}; valid: {', '.join(known)}")
