"""The one contact with `datasets` that works offline: local files, in the formats of the hub's corpora, streamed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from comt_cli.data.hub import stream_files


@pytest.mark.filterwarnings("default")  # the libraries' own
def test_each_file_is_one_shard_that_can_be_read_alone(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    import pyarrow
    import pyarrow.parquet

    for file in range(3):
        texts = [f"file {file} row {row}" for row in range(5)]
        with gzip.open(tmp_path / f"c4-train.{file:05d}-of-00003.json.gz", "wt") as handle:
            handle.writelines(json.dumps({"text": text, "timestamp": "t", "url": "u"}) + "\n" for text in texts)
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / f"{file:04d}.parquet", row_group_size=2)
    for pattern in ("c4-train.*.json.gz", "*.parquet"):
        files = stream_files(str(tmp_path / pattern))
        assert len(files) == 3
        assert [row["text"] for row in files[1]()] == [f"file 1 row {row}" for row in range(5)]
