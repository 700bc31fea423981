"""Measures how fast a corpus is prepared, and in how much memory: a script, not a test. recipes/RUNNING.md has what it
printed.

    python tests/measure_preparation.py 1000

writes that many megabytes of text as Parquet into a temporary folder (documents of about 3 kB, from lines of Python's
documentation and sources in a random order), prepares them in a process that is killed when a part is written, resumes
it, prepares them again undisturbed, and compares. All cores are used.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet

from comt_cli.data.prepare import kind_of
from comt_cli.data.text import dataset
from comt_cli.data.text.settings import DataSettings
from comt_cli.data.text.splits import train_texts

VOCABULARY, FILE_BYTES, ROWS = 32_000, 250_000_000, 1000


def generate(folder: Path, size: int) -> None:
    """Parquet files of `size` bytes of text in all."""
    names = ("python-docs", "python-source")
    lines = [
        line
        for name in names
        for text in train_texts(DataSettings(corpus=name, tokenizer="bytes").make_corpus(), 0.05)
        for line in text.splitlines(keepends=True)
    ]
    draw, number = random.Random(1), 0
    while size > 0:
        with pyarrow.parquet.ParquetWriter(
            folder / f"{number:04d}.parquet", pyarrow.schema({"text": "string"})
        ) as file:
            left = min(size, FILE_BYTES)
            size -= left
            while left > 0:
                texts = ["".join(draw.choices(lines, k=80)) for _ in range(ROWS)]
                left -= sum(len(text.encode()) for text in texts)
                file.write_table(pyarrow.table({"text": texts}))
        number += 1


def prepare(corpus: str, dies: bool) -> None:
    """Prepare the corpus, and print what came of it. One that dies is killed when its first part is written."""
    write_json = dataset.write_json

    def dying(path: Path, value: object) -> None:
        write_json(path, value)
        if dies and path.name == "part-00000.json":
            os.kill(os.getpid(), signal.SIGKILL)

    dataset.write_json = dying
    kind = kind_of(DataSettings(corpus=corpus, vocabulary=VOCABULARY, sequence_length=256))
    kind.fingerprint()  # hash the files
    dataset.tokenizer_for(kind.data, kind.corpus, lambda *_: None)
    begun = time.monotonic()
    data = kind.prepare()
    told = {"seconds": time.monotonic() - begun, "content": data.content_hash, "tokens": data.train.tokens}
    told |= {"parts": len(data._manifest.parts), "text": data.train.bytes + data.validation.bytes}
    told |= {"disk": sum(path.stat().st_size for path in data.folder.iterdir())}
    print(json.dumps(told | {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def started(corpus: str, *how: str, cache: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "prepare", corpus, *how]
    done = subprocess.run(command, env={**os.environ, "COMT_CACHE": str(cache)}, capture_output=True, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        sys.exit(done.stderr.decode())
    return json.loads(done.stdout or "{}")


def main(megabytes: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="comt-preparation-"))
    try:
        (folder / "data").mkdir()
        generate(folder / "data", megabytes * 10**6)
        print(
            f"{sum(path.stat().st_size for path in (folder / 'data').iterdir()) / 1e6:,.0f} MB of Parquet", flush=True
        )
        corpus = f"files:{folder}/data/*.parquet"
        whole = started(corpus, cache=folder / "whole")
        speed = whole["text"] / 1e6 / whole["seconds"]
        print(
            f"{whole['text'] / 1e6:,.0f} MB of text, {whole['tokens'] / 1e6:,.1f} million tokens to train on, "
            f"in {whole['seconds']:,.0f} s with {os.cpu_count()} cores: {speed:.1f} MB/s; "
            f"{whole['disk'] / 1e6:,.0f} MB in {whole['parts']} parts; peak memory {whole['memory'] / 1e6:,.0f} MB",
            flush=True,
        )
        killed = started(corpus, "dies", cache=folder / "killed")
        resumed = started(corpus, cache=folder / "killed")
        is_same = not killed and resumed["content"] == whole["content"]
        print(f"killed after one part and resumed in {resumed['seconds']:,.0f} s: the same content: {is_same}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(sys.argv[2], dies=len(sys.argv) > 3)
    else:
        main(int(sys.argv[1]))
