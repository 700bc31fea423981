"""A small data set of every kind, and a corpus of text that can fail."""

from __future__ import annotations

from comt_cli.data.captions.settings import CaptionData
from comt_cli.data.glue.settings import GlueData
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.pairs.settings import PairData
from comt_cli.data.prepare import kind_of
from comt_cli.data.text.settings import PART_BYTES, Corpus, DataSettings, Document, Kind, MaskedData, Stream

PROSE = "the gate reads a token and scales what the projection adds to the residual stream of every layer"
WORDS = PROSE.split()


class FakeCorpus(Corpus):
    """Texts given in files; may fail in the middle, and counts what is read."""

    def __init__(self, files, fail_at=None):
        self.files, self.fail_at = files, fail_at
        self.read: list[tuple[int, int]] = []

    def identity(self, progress=None):
        return {"corpus": "fake", "files": [list(file) for file in self.files]}

    def streams(self):
        return [Stream(None, self.documents)]

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


def prepared(data, corpus, part_bytes=PART_BYTES):
    """The rows of a corpus that is given, in shards of at most `part_bytes`."""
    return Kind(data, corpus, part_bytes).prepare()


def fingerprint(data):
    return kind_of(data).fingerprint()


def known_content(data, name):
    """Content hash of the prepared data with this fingerprint, if there is any."""
    return kind_of(data).known_content(name)


KINDS = ("text", "masked text", "pairs", "captions", "glue", "images")


def settings_of(kind, folder):
    """Settings of a kind; text is read from `folder`, where it is written."""
    if kind in ("text", "masked text", "glue"):
        folder.mkdir(exist_ok=True)
        for number in range(40):
            (folder / f"{number}.txt").write_text("\n".join(sentences(20, seed=number)))
    corpus = f"files:{folder}/*.txt"
    text = {"corpus": corpus, "tokenizer": "bytes", "sequence_length": 32, "validation_fraction": 0.3}
    pairs = {"difficulty": "easy", "pairs": 200, "validation_pairs": 20, "test_pairs": 20, "max_length": 200}
    return {
        "text": lambda: DataSettings(**text),
        "masked text": lambda: MaskedData(**text),
        "pairs": lambda: PairData(**pairs, tokenizer="bytes"),
        "captions": lambda: CaptionData(images=12, validation_images=3, test_images=4),
        "glue": lambda: GlueData(task="scene-nli", corpus=corpus, tokenizer="bytes", train_examples=50),
        "images": lambda: ImageDataSettings(size=8, train_images=40, validation_images=10),
    }[kind]()
