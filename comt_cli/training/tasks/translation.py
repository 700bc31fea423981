"""Translation as the loop sees it, and its evaluation: the loss of the references, and the scores of what beam search
makes of the sources."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from comt_cli.data.pair_batches import PairBatch, PairBuckets
from comt_cli.data.pairs.dataset import PairDataset
from comt_cli.data.split import IGNORE, Split
from comt_cli.generation.beam import NotFinite, beam_search
from comt_cli.generation.transcript import Transcript
from comt_cli.kernels.choice import Choice, choose_loss
from comt_cli.layers.dropout import Masks
from comt_cli.models.build import empty_network, wiring_of
from comt_cli.models.transformer import Transformer
from comt_cli.runs.plan import RunSpec
from comt_cli.scoring.metrics import METRICS, score
from comt_cli.scoring.slots import slot_accuracy
from comt_cli.tasks.settings.translation import TranslationSettings
from comt_cli.training.devices import compute_context, product_dtype
from comt_cli.training.evaluation import Evaluation, bounded_exp, finite, sums_over
from comt_cli.training.objective import SummedLoss
from comt_cli.training.optimisation import adam
from comt_cli.training.parallel import World
from comt_cli.training.tasks.base import TaskRun


class TranslationRun(TaskRun[PairBatch]):
    """An encoder-decoder that predicts every token of a target from its source and the tokens before it."""

    # One bucket: what is translated together, and so the rounding, is the same for any number of devices.
    evaluation_rows: ClassVar = 1

    model: Transformer
    objective: SummedLoss

    def __init__(self, spec: RunSpec, dataset: PairDataset, world: World) -> None:
        super().__init__(spec, dataset, world)
        self.translation, self.dataset = spec.settings_as(TranslationSettings), dataset

    def build(self) -> None:
        super().build()
        self.masks = Masks(self.model)

    def objective_of(self, model: Transformer) -> SummedLoss:
        return SummedLoss(model, self.settings.kernels, spread(self.translation.train.label_smoothing, model))

    def loss_kernels(self) -> dict[str, Choice]:
        settings = self.settings
        return {"loss": choose_loss(settings.kernels, self.world.device, product_dtype(settings.precision))}

    def caution(self, local_rows: int) -> str | None:
        return str(self.dataset.left_out) or None

    @staticmethod
    def optimizer(model: nn.Module, settings: TranslationSettings) -> torch.optim.Optimizer:
        return adam(model, settings.train)

    def inputs(self, batch: PairBatch) -> tuple[Tensor, ...]:
        """Source, the decoder's input, and its targets; dropout moves to the pairs' positions."""
        self.masks.move_to(self.spec.seed, batch.positions, self.world.device)
        return self._tensors(batch)

    def _tensors(self, batch: PairBatch) -> tuple[Tensor, ...]:
        tensors = (torch.from_numpy(array) for array in (batch.source, batch.target_in, batch.target_out))
        device = self.world.device
        if device.type == "cuda":
            return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)
        return tuple(tensors)

    def evaluate(self, batches: Iterable[PairBatch], split: Split[PairBatch]) -> Evaluation:
        """Loss and perplexity over the references of this process's batches, and the scores of the translations, which
        are in `outputs`, of all processes' batches. Where the loss is not finite, nothing is scored."""
        assert isinstance(split, PairBuckets)
        name = next(name for name, own in {"validation": self.validation, **self.tests}.items() if own is split)
        transcript = Transcript(self.outputs, name, self.world.rank)
        translated = self._translated(batches, split, transcript)

        def tally(source_BS: Tensor, in_BT: Tensor, out_BT: Tensor) -> Tensor:
            return torch.stack([self.objective(source_BS, in_BT, out_BT), (out_BT != IGNORE).sum()])

        loss_sum, tokens = sums_over(self.objective, translated, tally, self.settings.precision, self.world)
        if not tokens:
            raise ValueError("there is no target to evaluate on")
        loss = loss_sum / tokens
        texts, pairs = self.dataset.texts[name], np.sort(split.plan.members)
        is_german = self.translation.data.target == "de"  # whose compounds alone are split
        every = [key for key in METRICS if is_german or key != "bleu_compound"]
        keys = every if split is not self.validation else ["bleu"]
        extent = {"tokens": int(tokens), "sentences": len(pairs)}
        named = (*keys, *(("slot_accuracy",) if texts.slots is not None else ()))
        if not math.isfinite(loss):
            return Evaluation(loss, dict.fromkeys(("target_perplexity", *named)), extent)
        perplexity = {"target_perplexity": finite(bounded_exp(loss))}
        self.world.barrier()  # all translations are written
        found = transcript.texts(pairs.tolist())
        self.world.barrier()  # all are read
        if found is None:
            return Evaluation(loss, {**perplexity, **dict.fromkeys(named)}, extent)
        if self.world.is_main:
            transcript.finish(found)
        references = [texts.references[pair] for pair in pairs]
        scored = {key: score(key, found, references) for key in keys}
        if texts.slots is not None:
            scored["slot_accuracy"] = slot_accuracy(found, [texts.slots[pair] for pair in pairs])
        metrics: dict[str, float | None] = {**perplexity, **{key: score.value for key, score in scored.items()}}
        return Evaluation(loss, metrics, extent, {key: score.signature for key, score in scored.items()})

    def _translated(
        self, batches: Iterable[PairBatch], split: PairBuckets, transcript: Transcript
    ) -> Iterable[tuple[Tensor, ...]]:
        """The batches as tensors; each is translated on its way, unless the transcript has its pairs already. A batch
        of which it has a part is translated as a whole, as it would have been: rounding may depend on what is together.
        """
        for batch in batches:
            tensors = self._tensors(batch)
            pairs = split.numbers(batch)
            open_B = np.array([int(pair) not in transcript.done for pair in pairs])
            if batch.target_count and open_B.any():
                texts = self._texts(tensors[0])
                if texts is not None:
                    transcript.add({int(pairs[row]): texts[row] for row in np.flatnonzero(open_B)})
            yield tensors

    def _texts(self, source_BS: Tensor) -> list[str] | None:
        """The translations of sources; None where the network's outputs are not finite."""
        special, decode = self.dataset.tokenizer.special, self.translation.decode
        longest = [int(length) + decode.max_extra for length in (source_BS != special.pad).sum(1)]
        try:
            with compute_context(self.settings.precision, self.world.device):
                found = beam_search(
                    self.model,
                    source_BS,
                    width=decode.beam,
                    length_penalty=decode.penalty,
                    alpha=decode.alpha,
                    max_lengths=longest,
                    begin=special.need("begin"),
                    end=special.end,
                )
        except NotFinite:
            return None
        return [self.dataset.tokenizer.decode(each[0].tokens) for each in found]

    @classmethod
    def random_step(cls, spec: RunSpec, rows: int) -> tuple[SummedLoss, tuple[Tensor, ...]]:
        settings = spec.settings_as(TranslationSettings)
        model = empty_network(settings.model, wiring_of(spec.method), **spec.task.dimensions(settings))
        shape = model.example(rows)[0].shape
        Masks(model).move_to(0, np.arange(shape[0], dtype=np.int64), torch.device("cpu"))
        source, target = (torch.randint(1, model.vocabulary, shape) for _ in range(2))
        return SummedLoss(model, "reference"), (source, target, target)

    def checkpoint_parts(self) -> dict[str, Any]:
        return {"vocabulary": self.dataset.vocabulary_size, "tokenizer": self.dataset.tokenizer.to_json()}


def spread(smoothing: float, model: Transformer) -> float:
    """Label smoothing in torch's convention, which spreads it over all of the vocabulary, for tensor2tensor's: there
    the target has 1 - `smoothing`, and each of the other words `smoothing` / (V - 1)."""
    return smoothing * model.vocabulary / (model.vocabulary - 1)
