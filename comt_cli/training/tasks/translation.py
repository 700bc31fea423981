"""Translation, evaluated by the loss of the references and the scores of beam search's translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from comt_cli.data.pairs.dataset import PairBatch, PairBuckets, PairDataset
from comt_cli.data.split import Split
from comt_cli.scoring.metrics import METRICS, Score, score, slot_accuracy
from comt_cli.tasks.settings.translation import TranslationSettings
from comt_cli.training.encoder_decoder import EncoderDecoderRun


class TranslationRun(EncoderDecoderRun[PairBatch]):
    """A translator's run."""

    counted: ClassVar = "sentences"
    # One bucket: the sentences decoded together, and so the rounding, do not depend on the number of devices.
    evaluation_rows: ClassVar = 1
    dataset: PairDataset

    def caution(self, local_rows: int) -> str | None:
        return str(self.dataset.left_out) or None

    def arrays(self, batch: PairBatch) -> tuple[NDArray[Any], ...]:
        return batch.source, batch.target_in, batch.target_out

    def numbers(self, split: Split[PairBatch], batch: PairBatch) -> NDArray[np.int64]:
        assert isinstance(split, PairBuckets)
        return split.numbers(batch)

    def longest(self, *source: Tensor) -> list[int]:
        extra = self.spec.settings_as(TranslationSettings).decode.max_extra
        pad = self.dataset.tokenizer.special.need("pad")
        return [int(length) + extra for length in (source[0] != pad).sum(1)]

    def scores(self, split: str, numbers: Sequence[int], texts: Sequence[str]) -> Mapping[str, Score]:
        own, target = self.dataset.texts[split], self.spec.settings_as(TranslationSettings).data.target
        references = [own.references[pair] for pair in numbers]
        # Compounds are split only in German.
        every = [key for key in METRICS if target == "de" or key != "bleu_compound"]
        found = {key: score(key, texts, references) for key in (["bleu"] if split == "validation" else every)}
        if own.slots is not None:
            found["slot_accuracy"] = slot_accuracy(texts, [own.slots[pair] for pair in numbers])
        return found
