"""Text for tests, and a corpus that can fail."""

from __future__ import annotations

from comt_cli.data.text.settings import PART_BYTES, Corpus, Document, Kind, Stream

PROSE = "the gate reads a token and scales what the projection adds to the residual stream of every layer"
WORDS = PROSE.split()


class FakeCorpus(Corpus):
    """Texts given in files; may fail in the middle, and counts what is read."""

    def __init__(self, files, endless=False, validation_tokens=None, fail_at=None):
        self.files = files
        self.endless = endless
        self.validation_tokens = validation_tokens
        self.fail_at = fail_at
        self.read: list[tuple[int, int]] = []

    def identity(self, progress=None):
        return {"corpus": "fake", "files": [list(file) for file in self.files]}

    def streams(self):
        return [Stream(None, self.documents, None if self.endless else sum(map(len, self.files)))]

    def documents(self, start=(0, 0)):
        for file, texts in enumerate(self.files):
            for number, text in enumerate(texts):
                if (file, number) < start:
                    continue
                if (file, number) == self.fail_at:
                    raise RuntimeError("the power went out")
                self.read.append((file, number))
                yield Document(text, (file, number))


def sentences(count, seed=0):
    """Different short texts, the same for the same seed."""
    return [
        f"{number} " + " ".join(WORDS[(number * 7 + seed + i * i) % len(WORDS)] for i in range(3 + number * 5 % 17))
        for number in range(count)
    ]


def prepared(data, corpus, progress=lambda *_: None, part_bytes=PART_BYTES):
    """The rows of a corpus that is given, in shards of at most `part_bytes`."""
    return Kind(data, corpus, part_bytes).prepare(progress)  # type: ignore[return-value]
