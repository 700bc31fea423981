"""Prepared pairs, opened: the tokenizer, every split in buckets, and the texts of those that are decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from comt_cli.data.manifest import MANIFEST, TOKENIZER, damaged, verify
from comt_cli.data.pair_batches import PairBuckets, TokenLists
from comt_cli.data.pairs.corpus import PairTexts
from comt_cli.data.pairs.record import SIDES, TEXTS, PairManifest
from comt_cli.data.pairs.settings import PairData
from comt_cli.data.pairs.writing import open_side
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.tokenizer import Tokenizer
from comt_cli.data.tokenizers import load_tokenizer
from comt_cli.files import read_json

_SEED = 0  # of the packing: the data's own, so that every run sees the same buckets


class PairDataset:
    """Pairs of one fingerprint.

    Attributes:
        folder: where the prepared files lie.
        fingerprint: the identity of the pairs, their tokens and their buckets.
        content_hash: 16 hexadecimal digits over tokens, texts, tokenizer and packing.
        vocabulary_size: how many token ids there are, of both languages together.
        tokenizer: the joint one; padding is 0, and it has a begin token.
        train: the training split; no pair in it is longer than `max_length`.
        left_out: what was left out of training, as counts and as a sentence (`str`).
        texts: of "validation", "test" and, of almanac, "unseen"; text i belongs to pair number i of the split
            (`PairBuckets.pairs`). None of these is ever left out: where the longest has more tokens than
            `batch_tokens`, the split's buckets are of its size.
    """

    def __init__(self, data: PairData, folder: Path, manifest: PairManifest) -> None:
        self.folder = folder
        self.fingerprint = manifest.fingerprint
        self.content_hash = manifest.content_hash()
        self.vocabulary_size = manifest.vocabulary_size
        self.left_out = manifest.left_out
        self.tokenizer: Tokenizer = load_tokenizer(folder / TOKENIZER)
        self.texts: Mapping[str, PairTexts] = read_texts(folder)
        self._batch_tokens = data.batch_tokens
        source, target = (TokenLists(*open_side(folder, side, manifest.dtype)) for side in SIDES)
        self.train = PairBuckets(source, target, self.tokenizer.special, data.batch_tokens, _SEED)

    @cached_property
    def validation(self) -> PairBuckets:
        """The validation split."""
        return self._buckets(self.texts["validation"])

    @cached_property
    def test(self) -> PairBuckets:
        """The test split."""
        return self._buckets(self.texts["test"])

    @cached_property
    def unseen(self) -> PairBuckets | None:
        """A second test split, of combinations that training does not have; only almanac has one."""
        return self._buckets(self.texts["unseen"]) if "unseen" in self.texts else None

    def _buckets(self, texts: PairTexts) -> PairBuckets:
        encoded = [self.tokenizer.encode_batch(list(side)) for side in (texts.sources, texts.references)]
        longest = 1 + max(len(ids) for side in encoded for ids in side)
        source, target = (TokenLists.of(side) for side in encoded)
        return PairBuckets(source, target, self.tokenizer.special, max(self._batch_tokens, longest), _SEED)


def open_pairs(data: PairData, folder: Path, name: str, progress: ProgressCallback = no_progress) -> PairDataset:
    """Open the prepared `folder` of fingerprint `name` after checking that it is as it was written. Raises `UserError`
    where a file is damaged, missing or of other data; the message names it."""
    manifest = PairManifest.read(folder, name)
    verify(folder, manifest.files, progress)
    try:
        return PairDataset(data, folder, manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:  # removed or cut since the check
        raise damaged(folder / MANIFEST, str(error)) from error


def texts_as_json(texts: Mapping[str, PairTexts]) -> dict[str, dict[str, Sequence[Any] | None]]:
    """What `read_texts` reads."""
    return {
        split: {"sources": each.sources, "references": each.references, "slots": each.slots}
        for split, each in texts.items()
    }


def read_texts(folder: Path) -> dict[str, PairTexts]:
    """The texts of the splits that are decoded, as they were prepared. Raises `OSError` and `ValueError`."""
    return {split: PairTexts(**each) for split, each in read_json(folder / TEXTS, largest=1 << 32).items()}
