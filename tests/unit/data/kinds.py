"""A small data set of every kind, and how to read one of its files."""

from __future__ import annotations

from fake_corpus import sentences

from comt_cli.data.captions.settings import CaptionData
from comt_cli.data.glue.settings import GlueData
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.pairs.settings import PairData
from comt_cli.data.text.settings import DataSettings, MaskedData

KINDS = ("text", "masked text", "pairs", "captions", "glue", "images")


def settings_of(kind, folder):
    """Settings of a kind; text is read from `folder`, where it is written."""
    if kind in ("text", "masked text", "glue"):
        folder.mkdir(exist_ok=True)
        for number in range(40):
            (folder / f"{number}.txt").write_text("\n".join(sentences(20, seed=number)))
    corpus = f"files:{folder}/*.txt"
    text = {"corpus": corpus, "tokenizer": "bytes", "sequence_length": 32, "validation_fraction": 0.3}
    return {
        "text": lambda: DataSettings(**text),
        "masked text": lambda: MaskedData(
            corpus=corpus, tokenizer="bytes", sequence_length=32, validation_fraction=0.3
        ),
        "pairs": lambda: PairData(
            difficulty="easy", pairs=200, validation_pairs=20, test_pairs=20, tokenizer="bytes", max_length=200
        ),
        "captions": lambda: CaptionData(images=12, validation_images=3, test_images=4),
        "glue": lambda: GlueData(task="scene-nli", corpus=corpus, tokenizer="bytes", train_examples=50),
        "images": lambda: ImageDataSettings(size=8, train_images=40, validation_images=10),
    }[kind]()
