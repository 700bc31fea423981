"""One column of texts in files of rows: Parquet, Arrow (files and streams), JSON lines and CSV. Files are read in order
from any row on, a few rows at a time. JSON lines and CSV may be compressed by gzip or Zstandard."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import IO, Any

from comt_cli.errors import UserError

COLUMN = "text"  # the column that is read by default
_ROWS = 64  # held in memory at a time
_BUFFER = 1 << 20
_NAME = re.compile(r"(?i).*(\.parquet|\.arrow|(\.csv|\.jsonl|\.ndjson|\.json(?=\.))(\.gz|\.zst)?)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_HINT = "Name a column of strings at the end of data.corpus, after a number sign: #COLUMN."

Values = Iterator[Any]


def format_of(name: str) -> str | None:
    """The format of a file of rows by the end of its name; None for others, `.json` among them, which are texts."""
    found = _NAME.fullmatch(name)
    return found and (found[2] or found[1]).lower()


def read_column(file: IO[bytes], name: str, column: str, first: int = 0) -> Iterator[tuple[int, str]]:
    """The texts of a column from row `first` on, with the numbers of their rows. Rows without a text (null, or white
    space) are left out. `name` is that of the file, in errors. Raises `UserError` if the column is missing or not of
    text, the errors of `file`, and `ValueError` if the content is damaged."""
    for number, value in enumerate(_READERS[format_of(name)](file, name, column, first), first):
        if not isinstance(value, str | None):
            raise _not_text(name, column, f"{type(value).__name__} in row {number + 1:,}")
        if value and not value.isspace():
            if not value.isascii() and _SURROGATE.search(value):
                raise UserError(f"corpus: row {number + 1:,} of {name} is not Unicode text (a lone surrogate)")
            yield number, value


def _not_text(name: str, column: str, found: object) -> UserError:
    return UserError(f"corpus: the column {column!r} of {name} has no text, but {found}", _HINT)


def _check(name: str, column: str, known: Collection[str], where: str = "") -> None:
    if [*known].count(column) > 1:
        raise UserError(f"corpus: {name} has several columns {column!r}", "Rename them, or name another: #COLUMN.")
    if column not in known:
        said = f"corpus: {name} has no column {column!r}{where}; its columns: {', '.join(known) or 'none'}"
        raise UserError(said, _HINT)


# ---- by format: the values of the column from a row on


def _typed(schema: Any, name: str, column: str) -> None:
    import pyarrow

    _check(name, column, schema.names)
    kind = schema.field(column).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if kind not in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.null()):
        raise _not_text(name, column, kind)


def _parquet(file: IO[bytes], name: str, column: str, first: int) -> Values:
    import pyarrow.parquet

    source = pyarrow.parquet.ParquetFile(file, buffer_size=_BUFFER)
    _typed(source.schema_arrow, name, column)
    for group in range(source.num_row_groups):
        if first < (rows := source.metadata.row_group(group).num_rows):
            batches = source.iter_batches(_ROWS, row_groups=[group], columns=[column])
            yield from itertools.islice((each for batch in batches for each in batch[column].to_pylist()), first, None)
        first = max(0, first - rows)


def _arrow(file: IO[bytes], name: str, column: str, first: int) -> Values:
    from pyarrow import ArrowInvalid, ipc

    try:
        source = ipc.open_stream(file)
        batches: Iterable[Any] = source
    except ArrowInvalid:  # a file, with an index at its end
        file.seek(0)
        source = ipc.open_file(file)
        batches = (source.get_batch(number) for number in range(source.num_record_batches))
    _typed(source.schema, name, column)
    for batch in batches:
        for start in range(min(first, len(batch)), len(batch), _ROWS):
            yield from batch[column].slice(start, _ROWS).to_pylist()
        first = max(0, first - len(batch))


def _lines(file: IO[bytes], name: str) -> Iterator[str]:
    """The decoded lines of a file, without byte order mark, with their line ends."""
    if codec := {"gz": "gzip", "zst": "zstd"}.get(name.lower().rpartition(".")[2]):
        import pyarrow

        file = io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), codec), _BUFFER)
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as lines:
        yield from lines


def _json_lines(file: IO[bytes], name: str, column: str, first: int) -> Values:
    for number, line in enumerate(itertools.islice(_lines(file, name), first, None), first + 1):
        try:
            row = json.loads(line) if line.strip() else {column: None}
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            hint = "Each line should be one JSON object. To convert a file of one array: jq -c '.[]'"
            raise UserError(f"corpus: line {number:,} of {name} is not a JSON object", hint)
        _check(name, column, row, f" in line {number:,}")
        yield row[column]


def _csv(file: IO[bytes], name: str, column: str, first: int) -> Values:
    csv.field_size_limit(1 << 28)  # 128 KiB by default; with none, an open quote would take the rest of the file
    rows = csv.reader(_lines(file, name), strict=True)
    try:
        head = next(rows, [])
        _check(name, column, head)
        place = head.index(column)
        for row in itertools.islice((row for row in rows if row), first, None):
            if len(row) != len(head):
                said = f"corpus: {name} has {len(row)} fields at line {rows.line_num:,}, but {len(head)} columns"
                raise UserError(said, "Fields with commas, quotes or line ends should be in quotes.")
            yield row[place]
    except csv.Error as error:
        raise ValueError(f"line {rows.line_num:,}: {error}") from error


_READERS: dict[str | None, Callable[[IO[bytes], str, str, int], Values]] = {
    **{".parquet": _parquet, ".arrow": _arrow, ".csv": _csv},
    **{".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json_lines},
}
