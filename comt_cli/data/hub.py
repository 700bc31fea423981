"""Data sets of the Hugging Face hub, streamed by `datasets` file by file, so that reading can resume within a file."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from comt_cli.data.storage import first_line
from comt_cli.errors import UserError

Row = dict[str, Any]
RowFiles = Sequence[Callable[[], Iterable[Row]]]
"""The files of a split: calling one opens it and yields its rows in order."""


def open_files(repository: str, revision: str, files: str) -> RowFiles:
    """The files of a data set on the hub that match the pattern `files`; they are fetched when they are read."""
    return stream_files(f"hf://datasets/{repository}@{revision.replace('/', '%2F')}/{files}")


def stream_files(pattern: str) -> RowFiles:
    """The parquet or JSON files that match `pattern`, local or remote, each as a shard of the stream."""
    import datasets

    builder = "parquet" if pattern.endswith(".parquet") else "json"
    stream = datasets.load_dataset(builder, data_files=pattern, split="train", streaming=True)
    return [functools.partial(stream.shard, num_shards=stream.num_shards, index=n) for n in range(stream.num_shards)]


def from_place(files: RowFiles, start: tuple[int, int] = (0, 0)) -> Iterator[tuple[tuple[int, int], Row]]:
    """Rows with their positions (file, number in the file) from `start` on; earlier files are not opened."""
    for file, rows in enumerate(files[start[0] :], start[0]):
        skipped = start[1] if file == start[0] else 0
        for number, row in enumerate(itertools.islice(rows(), skipped, None), skipped):
            yield (file, number), row


@contextlib.contextmanager
def reachable(corpus: str, repository: str, instead: str) -> Iterator[None]:
    """Convert the libraries' many exceptions to one `UserError`; `instead` is the advice for use without network."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        causes = {*_causes(error), *(["GatedRepoError"] if "is a gated dataset" in str(error) else [])}
        for meaning in (_MEANINGS[kind] for kind in _MEANINGS if kind in causes):
            hint = f"See https://huggingface.co/datasets/{repository}. {_LOG_IN}"
            raise UserError(f"corpus: {repository} {meaning}: {corpus}", hint) from error
        said = f"corpus: cannot read {corpus} from huggingface.co/datasets/{repository}: {first_line(error)}"
        hint = f"{corpus} needs the network once: run the same command again with a network. {instead}"
        raise UserError(said, hint) from error


_LOG_IN = "For private and gated data sets log in by hf auth login, or set HF_TOKEN."
_MEANINGS = {
    "GatedRepoError": "is given only to those who ask for it",
    "RevisionNotFoundError": "has no such revision",
    "RepositoryNotFoundError": "is no data set of the hub, or a private one",
}
"""The hub's errors, the special case first."""


def _causes(error: BaseException | None) -> Iterator[str]:
    """The names of an exception and of those that it was raised from. Importing their classes takes a second."""
    while error is not None:
        yield type(error).__name__
        error = error.__cause__ or error.__context__
