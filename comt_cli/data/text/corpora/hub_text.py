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

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from comt_cli.data.hub import RowFiles, from_place, open_files, reachable
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.text.corpus import Corpus, Document, SplitName

FILE_ORDER_SEED = 42
VALIDATION_TOKENS = 12_000_000
"""Enough for the papers' evaluation, which stops after 10 million tokens."""


@dataclass(frozen=True)
class HubSource:
    """One split on the hub: the repository, its revision, and the pattern of the split's files."""

    repository: str
    revision: str
    files: str
    split: SplitName | None


def open_source(source: HubSource) -> RowFiles:
    """The files of a source on the hub."""
    return open_files(source.repository, source.revision, source.files)


class HubText(Corpus):
    """A corpus of the hub, whose rows have a `text`. Nothing is fetched before its streams are read."""

    sources: ClassVar[Sequence[HubSource]]
    """Validation first where there is one: it is small, and training a tokenizer skips it."""
    endless = True
    validation_tokens: int | None = VALIDATION_TOKENS
    instead = "Without network, use corpus: python-docs or corpus: files:GLOB."
    """What can be used where the hub cannot be reached."""

    def __init__(self, open_source: Callable[[HubSource], RowFiles] = open_source) -> None:
        """`open_source` gives the files of a source; it may raise anything when the network does not answer."""
        self.open = open_source

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """What is asked of the hub; known without network."""
        sources = [[source.repository, source.revision, source.files, source.split] for source in self.sources]
        return {
            "corpus": self.names[0],
            "sources": sources,
            "file_order_seed": FILE_ORDER_SEED,
            "validation_tokens": self.validation_tokens,
        }

    def streams(self) -> Sequence[HubStream]:
        """One stream a source."""
        return [HubStream(self, source) for source in self.sources]

    def files(self, source: HubSource) -> RowFiles:
        """The files of a source, a document a row."""
        return self.open(source)


class C4(HubText):
    """The English part of C4 (Raffel et al. 2020)."""

    names = ("c4",)
    keys: ClassVar[Mapping[str, Any]] = {}
    sources = tuple(
        HubSource("allenai/c4", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2", f"en/c4-{split}.*.json.gz", split)
        for split in ("validation", "train")
    )


class OpenWebText(HubText):
    """OpenWebText (Gokaslan & Cohen 2019). The repository itself holds a loading script, which `datasets` no longer
    runs; this is the hub's conversion of it."""

    names = ("openwebtext",)
    sources = (HubSource("Skylion007/openwebtext", "refs/convert/parquet", "plain_text/*train*/*.parquet", None),)


class HubStream:
    """The documents of one source, its files in the seeded order."""

    total: int | None = None

    def __init__(self, corpus: HubText, source: HubSource) -> None:
        self.split = source.split
        self._corpus, self._source = corpus, source

    def documents(self, start: tuple[int, int] = (0, 0)) -> Iterator[Document]:
        """The documents from `start` on; earlier files are not opened. Raises `UserError` where the hub cannot be
        reached, or stopped answering; what was prepared so far is kept."""
        with reachable(self._corpus.names[0], self._source.repository, self._corpus.instead):
            files = self._corpus.files(self._source)
            order = list(range(len(files)))
            random.Random(FILE_ORDER_SEED).shuffle(order)
            for place, row in from_place(files, start, order):
                if row["text"].strip():
                    yield Document(row["text"], place)
