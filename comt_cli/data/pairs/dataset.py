"""Prepared pairs, opened: the tokenizer, every split in buckets, and the texts of those that are decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from comt_cli.data.pairs.batches import PairBuckets
from comt_cli.data.pairs.corpus import PairTexts
from comt_cli.data.pairs.record import SIDES, TEXTS, PairManifest
from comt_cli.data.pairs.settings import PairData
from comt_cli.data.pairs.writing import open_side
from comt_cli.data.prepared import PreparedTokens
from comt_cli.data.token_lists import TokenLists
from comt_cli.files import read_json

_SEED = 0  # of the packing: the data's own, so that every run sees the same buckets


class PairDataset(PreparedTokens[PairBuckets]):
    """Pairs of one fingerprint in buckets, of one vocabulary of both languages; the tokenizer has a begin token.

    Attributes:
        left_out: what was left out of training, as counts and as a sentence (`str`): no pair in it is longer than
            `max_length`.
        texts: of "validation", "test" and, of almanac, "unseen"; text i belongs to pair number i of the split
            (`PairBuckets.pairs`). None of these is ever left out: where the longest has more tokens than
            `batch_tokens`, the split's buckets are of its size.
    """

    def __init__(self, data: PairData, folder: Path, manifest: PairManifest) -> None:
        super().__init__(folder, manifest)
        self.left_out = manifest.left_out
        self.texts: Mapping[str, PairTexts] = read_texts(folder)
        self._batch_tokens = data.batch_tokens
        self._source, self._target = (TokenLists(*open_side(folder, side, manifest.dtype)) for side in SIDES)

    @cached_property
    def unseen(self) -> PairBuckets | None:
        """A second test split, of combinations that training does not have; only almanac has one."""
        return self.split("unseen") if "unseen" in self.texts else None

    def split(self, name: str) -> PairBuckets:
        special = self.tokenizer.special
        if name == "train":
            return PairBuckets(self._source, self._target, special, self._batch_tokens, _SEED)
        texts = self.texts[name]
        encoded = [self.tokenizer.encode_batch(list(side)) for side in (texts.sources, texts.references)]
        longest = 1 + max(len(ids) for side in encoded for ids in side)
        source, target = (TokenLists.of(side) for side in encoded)
        return PairBuckets(source, target, special, max(self._batch_tokens, longest), _SEED)


def texts_as_json(texts: Mapping[str, PairTexts]) -> dict[str, dict[str, Sequence[Any] | None]]:
    """What `read_texts` reads."""
    return {
        split: {"sources": each.sources, "references": each.references, "slots": each.slots}
        for split, each in texts.items()
    }


def read_texts(folder: Path) -> dict[str, PairTexts]:
    """The texts of the splits that are decoded, as they were prepared. Raises `OSError` and `ValueError`."""
    return {split: PairTexts(**each) for split, each in read_json(folder / TEXTS, largest=1 << 32).items()}
