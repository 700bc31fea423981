"""`c4` and `openwebtext`: the papers' corpora, streamed from the Hugging Face hub.

The original scripts shuffle the stream through a buffer, so that what is read depends on the number of devices, of
workers and on the version of `datasets`. Here the corpus's files are read in an order drawn from a fixed seed, each
from its beginning: a preparation that was stopped resumes in the middle of a file without reading the earlier ones
again. The training order does not suffer: every epoch is a permutation of all rows (see `order`).

C4 is read at a pinned commit. OpenWebText is not: what is asked for is the hub's automatic conversion, a branch that
the hub may write anew, and no commit of it is known here. Two preparations made at different times may therefore differ
under one fingerprint; the hash of the tokens themselves, in every manifest and checkpoint, distinguishes them.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from comt_cli.data.corpus import Document, SplitName
from comt_cli.data.storage import ProgressCallback, first_line, no_progress
from comt_cli.errors import UserError

FILE_ORDER_SEED = 42
VALIDATION_TOKENS = 12_000_000
"""Enough for the papers' evaluation, which stops after 10 million tokens."""


class RemoteFiles(Protocol):
    """The files of one split, each a sequence of texts."""

    def __len__(self) -> int:
        """How many files there are."""
        ...

    def texts(self, file: int) -> Iterator[str]:
        """The texts of one file in order."""
        ...


@dataclass(frozen=True)
class HubSource:
    """One split on the hub: the repository, its revision, and the pattern of the split's files."""

    repository: str
    revision: str
    files: str
    split: SplitName | None


C4_REVISION = "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"
SOURCES: dict[str, tuple[HubSource, ...]] = {
    # Validation first: it is small, and training a tokenizer skips it.
    "c4": (
        HubSource("allenai/c4", C4_REVISION, "en/c4-validation.*.json.gz", "validation"),
        HubSource("allenai/c4", C4_REVISION, "en/c4-train.*.json.gz", "train"),
    ),
    # The repository itself holds a loading script, which `datasets` no longer runs; this is the hub's conversion of it.
    "openwebtext": (HubSource("Skylion007/openwebtext", "refs/convert/parquet", "plain_text/*train*/*.parquet", None),),
}


def hub_corpus(name: str) -> HubCorpus:
    """The corpus called `name`: "c4" or "openwebtext"."""
    return HubCorpus(name, SOURCES[name], open_on_hub)


class HubCorpus:
    """A corpus of the hub. Nothing is fetched before its streams are read."""

    endless = True
    validation_tokens: int | None = VALIDATION_TOKENS
    instead = "Without network, use corpus: python-docs or corpus: files:GLOB."
    """What can be used where the hub cannot be reached."""

    def __init__(
        self, name: str, sources: Sequence[HubSource], open_source: Callable[[HubSource], RemoteFiles]
    ) -> None:
        """`open_source` gives the files of a source; it may raise anything when the network does not answer."""
        self.name = name
        self._sources = sources
        self._open = open_source

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """What is asked of the hub; known without network."""
        sources = [[source.repository, source.revision, source.files, source.split] for source in self._sources]
        return {
            "corpus": self.name,
            "sources": sources,
            "file_order_seed": FILE_ORDER_SEED,
            "validation_tokens": self.validation_tokens,
        }

    def streams(self) -> Sequence[HubStream]:
        """One stream a source."""
        return [HubStream(self.name, source, self._open, self.instead) for source in self._sources]


class HubStream:
    """The documents of one source, its files in the seeded order."""

    total: int | None = None

    def __init__(
        self, corpus: str, source: HubSource, open_source: Callable[[HubSource], RemoteFiles], instead: str
    ) -> None:
        self.split = source.split
        self._corpus = corpus
        self._source = source
        self._open = open_source
        self._instead = instead

    def documents(self, start: tuple[int, int] = (0, 0)) -> Iterator[Document]:
        """The documents from `start` on; earlier files are not opened. Raises `UserError` where the hub cannot be
        reached, or stopped answering; what was prepared so far is kept."""
        with reachable(self._corpus, self._source.repository, self._instead):
            files = self._open(self._source)
            order = list(range(len(files)))
            random.Random(FILE_ORDER_SEED).shuffle(order)
            for position, file in enumerate(order):
                if position < start[0]:
                    continue
                skipped = start[1] if position == start[0] else 0
                for number, text in enumerate(itertools.islice(files.texts(file), skipped, None), skipped):
                    if text.strip():
                        yield Document(text, (position, number))


@contextlib.contextmanager
def reachable(corpus: str, repository: str, instead: str) -> Iterator[None]:
    """Say in one way what a dozen exception types of `datasets`, the hub's client and HTTP libraries mean; `instead`
    says what can be used without network."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"corpus: cannot read {corpus} from huggingface.co/datasets/{repository}: {first_line(error)}",
            f"{corpus} needs the network once; what was prepared so far is kept, so run the same command again when "
            f"there is one. {instead}",
        ) from error


class StreamedFiles:
    """The files of a streaming `datasets.IterableDataset`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return int(self._dataset.num_shards)

    def rows(self, file: int) -> Iterator[dict[str, Any]]:
        """The rows of one file, which is one shard of the stream."""
        yield from self._dataset.shard(num_shards=len(self), index=file)

    def texts(self, file: int) -> Iterator[str]:
        """The column `text` of one file's rows."""
        for row in self.rows(file):
            yield row["text"]


def open_on_hub(source: HubSource) -> StreamedFiles:
    """Find the files of `source` on the hub (their listing is fetched, their content only when read)."""
    return open_files(source.repository, source.revision, source.files)


def open_files(repository: str, revision: str, files: str) -> StreamedFiles:
    """Find the files of a data set on the hub that match the pattern `files`."""
    import datasets

    builder = "parquet" if files.endswith(".parquet") else "json"
    pattern = f"hf://datasets/{repository}@{revision.replace('/', '%2F')}/{files}"
    return stream_files(datasets, builder, pattern)


def stream_files(datasets: Any, builder: str, pattern: str) -> StreamedFiles:
    """The files that `pattern` names, local or remote, read by the builder "json" or "parquet" of `datasets`."""
    return StreamedFiles(datasets.load_dataset(builder, data_files=pattern, split="train", streaming=True))
