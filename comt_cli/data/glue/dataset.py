"""Samples of fine-tuning as padded batches: one text or two as a sequence, with a class or a number.

A sequence is the begin token, the first text and a separator, then the second text and a separator if there is one.
Shapes: N examples of a split, B samples of a batch, T tokens of its longest sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.glue.settings import GLUE_FORMAT, Example, GlueData, GlueManifest, GlueSplitName, Kind
from comt_cli.data.prepare import TOKENIZER, Manifest, PreparedTokens
from comt_cli.data.split import AnyBatch, PositionedSplit, TokenLists
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.text.dataset import tokenizer_for
from comt_cli.data.text.settings import IN_BLOCKS, split_of
from comt_cli.data.text.splits import source_of
from comt_cli.data.tokenizer import Tokenizer
from comt_cli.errors import UserError
from comt_cli.files import read_json, sha256, write_json

_AT_ONCE = 1 << 13  # examples whose tokens are held as lists at a time

Targets = NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True)
class GlueBatch(AnyBatch):
    """Sequences for one forward pass, padded on the right: `tokens` int64 [B, T]; `segments` int64 [B, T], 1 for the
    second text and its separator; `targets` [B], int64 classes or float32 numbers, `IGNORE` for samples that do not
    count; `positions` int64 [B], for dropout masks."""

    tokens: NDArray[np.int64]
    segments: NDArray[np.int64]
    targets: Targets
    positions: NDArray[np.int64]


class GlueSplit(PositionedSplit[GlueBatch]):
    """The examples of a split. Sequences longer than `length` tokens, special ones included, are shortened: the longer
    text, or the second of equally long ones, loses its last token until the sequence fits."""

    def __init__(self, examples: Sequence[Example], tokenizer: Tokenizer, classes: int, length: int) -> None:
        """Labels are numbers if `classes` is 1. Raises `ValueError` if a begin or separator token is missing."""
        special = tokenizer.special
        begin, separator = special.need("begin"), special.need("separator")
        self._pad = special.need("pad")
        sequences, seconds = list[NDArray[np.uint32]](), []
        for start in range(0, len(examples), _AT_ONCE):
            some = examples[start : start + _AT_ONCE]
            firsts = tokenizer.encode_batch([each.first for each in some])
            others = tokenizer.encode_batch([each.second or "" for each in some])
            for each, first, second in zip(some, firsts, others, strict=True):
                kept, kept_second = cut(len(first), None if each.second is None else len(second), length)
                sequence = [begin, *first[:kept], separator]
                seconds.append(len(sequence))
                sequence += [] if each.second is None else [*second[:kept_second], separator]
                sequences.append(np.array(sequence, dtype=np.uint32))
        offsets = np.cumsum([0, *map(len, sequences)], dtype=np.int64)
        self._sequences = TokenLists(np.concatenate([np.zeros(0, dtype=np.uint32), *sequences]), offsets)
        self._second_N = np.array(seconds, dtype=np.int64)  # start of the second text
        labels = [each.label for each in examples]
        self.targets: Targets = np.array(labels, np.float32) if classes == 1 else np.array(labels, np.int64)
        super().__init__(np.ones(len(examples), dtype=np.int64))

    def _batch(self, indices: NDArray[np.int64], positions: NDArray[np.int64]) -> GlueBatch:
        length_B = self._sequences.lengths_of(indices)
        tokens_BT = self._sequences.padded(indices, int(length_B.max()), self._pad)
        columns = np.arange(tokens_BT.shape[1])
        segments_BT = (columns >= self._second_N[indices, None]) & (columns < length_B[:, None])
        return GlueBatch(tokens_BT, segments_BT.astype(np.int64), self.targets[indices], positions)


def cut(first: int, second: int | None, length: int) -> tuple[int, int]:
    """Tokens kept of a first and a second text (None: missing) in `length` tokens with the special ones."""
    if second is None:
        return min(first, length - 2), 0
    room = length - 3
    if first + second <= room:
        return first, second
    kept = min(second, max(room // 2, room - first))
    return room - kept, kept


class GlueDataset(PreparedTokens[GlueSplit]):
    """The examples of a task; `examples` are their texts and labels. The validation split is held out of training. For
    GLUE's own tasks the test split is the development set, because the labels of the test sets are secret."""

    def __init__(self, kind: Kind, folder: Path, manifest: GlueManifest) -> None:
        super().__init__(folder, manifest)
        self._data = kind.data
        self.facts = {} if manifest.note is None else {"data_note": manifest.note}
        self.examples: Mapping[str, Sequence[Example]] = {
            split: [Example(*each) for each in read_json(folder / f"{split}.json")] for split in manifest.examples
        }

    @cached_property
    def unseen(self) -> GlueSplit | None:
        """A second test set with texts of other kinds than training's; only for mnli, else None."""
        return self.split("unseen") if "unseen" in self.examples else None

    def split(self, name: str) -> GlueSplit:
        return GlueSplit(self.examples[name], self.tokenizer, self._data.classes, self._data.sequence_length)


opened = GlueDataset


def write(kind: Kind, folder: Path, name: str, progress: ProgressCallback) -> Manifest:
    """Write examples and vocabulary."""
    splits = divided(kind.corpus.read(progress), kind.data)
    text = kind.data.make_corpus()
    tokenizer_for(kind.data, text, progress).save(folder / TOKENIZER)
    for split, examples in splits.items():
        write_json(folder / f"{split}.json", examples)
    counts = {split: len(examples) for split, examples in splits.items()}
    files = [TOKENIZER, *(f"{split}.json" for split in splits)]
    own = {"format": GLUE_FORMAT, "source": kind.corpus.identity(), "examples": counts}
    shares = kind.corpus.is_of_text and IN_BLOCKS in source_of(text, kind.data.validation_fraction)
    return kind.record(name, folder, files, **own, shares_documents=shares)


def divided(read: Mapping[GlueSplitName, Sequence[Example]], data: GlueData) -> dict[GlueSplitName, Sequence[Example]]:
    """Divide training into training and validation by the hash of the first text, so that all examples of a premise are
    in one split. The selection depends on their texts alone. Raises `UserError` if a split has too few examples."""
    parts: dict[str, list[Example]] = {"train": [], "validation": []}
    for example in read["train"]:
        parts[split_of(example.first, data.held_out)].append(example)
    kept, held = parts.values()
    wanted = data.train_examples
    if wanted is not None:
        if wanted > len(kept):
            said = f"{data.task} has {len(kept):,} examples to train on, without those held out, not {wanted:,}"
            raise UserError(f"train_examples: {said}", f"Use at most {len(kept):,}, or leave the key out for all.")
        by_hash = sorted(range(len(kept)), key=lambda number: sha256(kept[number].texts))
        kept = [kept[number] for number in sorted(by_hash[:wanted])]
    splits: dict[GlueSplitName, Sequence[Example]] = {**read, "train": kept, "validation": held}
    if empty := [split for split, examples in splits.items() if not examples]:
        hint = "Use more text, or another held_out or validation_fraction."
        raise UserError(f"task: {data.task} has no example in the {empty[0]} split", hint)
    return splits
