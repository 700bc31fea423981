"""One pass over a corpus: each document to its split, to ids, to the shards; until the corpus or the limits end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from comt_cli.data.storage import ProgressCallback
from comt_cli.data.text.corpus import Corpus, Document, SplitName, Stream, split_in
from comt_cli.data.text.settings import DataSettings
from comt_cli.data.text.shards import PartWriter
from comt_cli.data.tokenizer import Tokenizer

_CHUNK_DOCUMENTS = 512
_CHUNK_CHARACTERS = 4_000_000


class Tokenising:
    """One pass over a corpus into a `PartWriter`, from where the writer's parts end."""

    def __init__(
        self, data: DataSettings, corpus: Corpus, tokenizer: Tokenizer, writer: PartWriter, progress: ProgressCallback
    ) -> None:
        self._data = data
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._writer = writer
        self._progress = progress
        self._limits: dict[SplitName, int | None] = {
            "train": data.max_train_tokens,
            "validation": corpus.validation_tokens,
        }

    def run(self) -> None:
        """Read, split, tokenise and write until the corpus ends or the limits are reached, and flush the writer.

        Raises:
            UserError: the corpus cannot be read to the end.
            StorageError: the disk refuses.
        """
        streams = self._corpus.streams()
        first, *start = self._writer.after
        for number in range(first, len(streams)):
            self._read(streams[number], number, (start[0], start[1]) if number == first else (0, 0))
        self._writer.flush((len(streams), 0, 0))

    def _read(self, stream: Stream, number: int, start: tuple[int, int]) -> None:
        if self._finished(stream):
            return
        done = sum(start) if stream.total is not None else 0
        for chunk in _chunks(stream.documents(start)):
            self._take(stream, number, chunk)
            done += len(chunk)
            self._report(stream, done)
            if self._finished(stream):
                return

    def _take(self, stream: Stream, number: int, chunk: Sequence[Document]) -> None:
        splits = [split_in(stream, document, self._data.validation_fraction) for document in chunk]
        wanted = [(split, doc) for split, doc in zip(splits, chunk, strict=True) if self._room(split) != 0]
        encoded = self._tokenizer.encode_batch([document.text for _, document in wanted])
        for (split, document), ids in zip(wanted, encoded, strict=True):
            kept = self._cut(ids, self._room(split))
            if not kept:
                continue  # the split was filled by the documents before, in this chunk
            whole = len(kept) > len(ids)
            text = document.text if whole else self._tokenizer.decode(kept)
            self._writer.add(split, kept, len(text.encode()), (number, *document.place))

    def _cut(self, ids: list[int], room: int | None) -> list[int]:
        """The tokens of one document as they are stored, its end-of-text token included.

        In the layout `pad` a row keeps the first tokens and the end-of-text token, as the papers' tokenizer does when
        it truncates: a row always ends with it. The last document before a token limit is cut to fit it.
        """
        if self._data.rows == "pad":
            ids = ids[: self._data.sequence_length - 1]
        return [*ids, self._tokenizer.eos_id][:room]

    def _room(self, split: SplitName) -> int | None:
        """How many tokens the split still takes; None: any number."""
        limit = self._limits[split]
        return None if limit is None else max(0, limit - self._writer.tokens(split))

    def _finished(self, stream: Stream) -> bool:
        """Whether reading on would add nothing, or (of an endless corpus) nothing that was asked for."""
        if stream.split is not None:
            return self._room(stream.split) == 0
        return self._room("train") == 0 and (self._corpus.endless or self._room("validation") == 0)

    def _report(self, stream: Stream, done: int) -> None:
        limit = self._limits[stream.split or "train"]
        if stream.total is None and limit is not None:
            self._progress("tokenising (tokens)", self._writer.tokens(stream.split or "train"), limit)
        else:
            self._progress("tokenising documents", done, stream.total)


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in groups that occupy all cores without filling the memory. Their size does not change the result."""
    iterator = iter(documents)
    for first in iterator:
        chunk, characters = [first], len(first.text)
        for document in itertools.islice(iterator, _CHUNK_DOCUMENTS - 1):
            chunk.append(document)
            characters += len(document.text)
            if characters >= _CHUNK_CHARACTERS:
                break
        yield chunk
