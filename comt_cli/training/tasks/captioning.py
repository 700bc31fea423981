"""Captioning: training by likelihood or by self-critical training on CIDEr-D; evaluation of beam search's captions.

Self-critical training (Rennie et al. 2017) draws K captions w of every image from the model p and minimises

    - E_w r(w),   whose gradient is estimated by   - (r(w) - b) d log p(w).

r(w) is CIDEr-D over 100 against the image's captions, with document frequencies of the training captions. b is the
reward of the greedy caption, or the mean reward of the image's other K - 1. p is the network without dropout, for
drawing and in the trained pass. Tokens that captions do not have (padding, begin, unknown word, end of an empty
caption) are never drawn, and log p is over the other tokens. Draws are pure functions of (seed, step, sample).

Shapes: B images, K captions per image, R = B K, T words, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from comt_cli.data.captions.dataset import CaptionBatch, CaptionDataset
from comt_cli.data.order import uniform_draws
from comt_cli.data.split import IGNORE, Split
from comt_cli.data.tokenizer import PAD
from comt_cli.generation.beam import Forbidden
from comt_cli.generation.caption import no_caption
from comt_cli.generation.sampling import drawn_sequences
from comt_cli.layers.dropout import Dropout
from comt_cli.models.transformer import EncoderDecoder
from comt_cli.runs.plan import RunSpec
from comt_cli.scoring.captions import Cider, caption_scores, java_scores
from comt_cli.scoring.metrics import Score
from comt_cli.scoring.scenes import scene_f1
from comt_cli.tasks.settings.captioning import CaptioningSettings
from comt_cli.training.devices import compute_context
from comt_cli.training.encoder_decoder import EncoderDecoderRun
from comt_cli.training.objective import Objective
from comt_cli.training.parallel import World

_COCO = "references:all|tokens:treebank|punctuation:no"
_SIGNATURES = {"cider": f"{_COCO}|form:d|sigma:6", "scene_f1": "facts:all"}
"""Conventions of scores; those that are missing use the first one."""


class SelfCriticalLoss(Objective):
    """(regions, mask, decoder inputs [R, T], rewards [R], advantages [R], drawn words [R, T]) -> - sum of `weight`
    times the rewards, with the gradient of - sum_i weight advantage_i log p(w_i).

    `weight` is the number of targets that the loop counts per caption, so that the mean loss is minus the mean reward.
    Words where `never_TV` is True are never drawn (T: longest caption).
    """

    model: EncoderDecoder

    def __init__(self, model: EncoderDecoder, weight: int, never_TV: Tensor) -> None:
        super().__init__(model, model.forward)
        self.weight, self.never_TV = weight, never_TV

    def forward(self, *given: Tensor) -> Tensor:
        *inputs, rewards_R, advantages_R, said_RT = given
        logits_RTV = self.passes(*inputs)
        logits_RTV = logits_RTV.masked_fill(self.never_TV[: said_RT.shape[1]].to(logits_RTV.device), -torch.inf)
        losses_RT = F.cross_entropy(logits_RTV.float().transpose(1, 2), said_RT, ignore_index=IGNORE, reduction="none")
        surrogate = self.weight * (advantages_R * losses_RT.sum(1)).sum()
        return surrogate - (surrogate + self.weight * rewards_R.sum()).detach()


class CaptioningRun(EncoderDecoderRun[CaptionBatch]):
    """A captioner's run."""

    counted: ClassVar = "images"
    dataset: CaptionDataset

    def __init__(self, spec: RunSpec, dataset: CaptionDataset, world: World) -> None:
        super().__init__(spec, dataset, world)
        self.captioning = spec.settings_as(CaptioningSettings)
        assert self.captioning.data.max_length is not None  # the settings guarantee it
        self.most = self.captioning.data.max_length + 1
        # Captions drawn per image in training; 0: the image's own captions are used.
        self.samples = self.captioning.train.samples or 0
        if self.samples:
            self.counted_words = spec.task.dimensions(spec.settings)["length"]
            self.train = copy(self.train)
            # As many targets as in estimates of cost (`Captioning.dimensions`).
            drawn = self.samples * self.counted_words
            self.train.target_counts = lambda indices: np.full(len(indices), drawn)  # type: ignore[method-assign]

    def objective_of(self, model: EncoderDecoder) -> Objective:
        likelihood = super().objective_of(model)
        if not self.samples:
            return likelihood
        for module in model.modules():  # not eval(), which would disable recomputation (`activation_checkpointing`)
            if isinstance(module, Dropout):
                module.p = 0.0
        special, never_TV = self.dataset.tokenizer.special, torch.zeros(self.most, model.vocabulary, dtype=torch.bool)
        for place, never_V in enumerate(never_TV):
            never_V[self.forbidden.at(place, special.need("begin"), special.end)] = True
        return SelfCriticalLoss(model, self.counted_words, never_TV)

    @property
    def forbidden(self) -> Forbidden:
        return no_caption(self.dataset.tokenizer.special)

    def arrays(self, batch: CaptionBatch) -> tuple[NDArray[Any], ...]:
        return batch.regions, batch.region_mask, batch.target_in, batch.target_out

    def numbers(self, split: Split[CaptionBatch], batch: CaptionBatch) -> NDArray[np.int64]:
        return batch.images

    def longest(self, *source: Tensor) -> list[int]:
        return [self.most] * len(source[0])

    # ---- self-critical training

    @cached_property
    def cider(self) -> Cider:
        """The rewards of captions for training images."""
        return Cider(self.dataset.texts["train"].references)

    def inputs(self, batch: CaptionBatch) -> tuple[Tensor, ...]:
        """The batch on the device; in self-critical training K drawn captions per image, with their rewards."""
        if not self.samples:
            return super().inputs(batch)
        regions_BRF, mask_BR, *_ = self.tensors(batch)
        special = self.dataset.tokenizer.special
        said_BKT, rewards_BK, baseline_BK = self._sampled(batch, regions_BRF, mask_BR)
        said_RT = said_BKT.flatten(0, 1)
        in_RT = torch.cat([torch.full_like(said_RT[:, :1], special.need("begin")), said_RT[:, :-1]], dim=1)
        earned = (torch.from_numpy(each).float().flatten() for each in (rewards_BK, rewards_BK - baseline_BK))
        repeated = (each.repeat_interleave(self.samples, dim=0) for each in (regions_BRF, mask_BR))
        return (
            *repeated,
            in_RT.masked_fill(in_RT == special.end, PAD),
            *(each.to(self.world.device) for each in earned),
            said_RT.masked_fill(said_RT == PAD, IGNORE),
        )

    def _sampled(self, batch: CaptionBatch, *source: Tensor) -> tuple[Tensor, NDArray[np.float64], NDArray[np.float64]]:
        """The captions drawn for a batch, int64 [B, K, T], their rewards, and the baselines of the rewards."""
        is_greedy = self.captioning.train.self_critical_baseline == "greedy"
        special = self.dataset.tokenizer.special
        B, K, L = len(batch.positions), self.samples, self.most
        uniform = uniform_draws(self.spec.seed, int(batch.positions[0]), B, K * L).reshape(B, K, L)
        self.model.eval()
        with compute_context(self.settings.precision, self.world.device):
            options: dict[str, Any] = {"begin": special.need("begin"), "end": special.end, "forbidden": self.forbidden}
            uniform_BKL = torch.from_numpy(uniform)
            said = drawn_sequences(self.model, *source, uniform_BKL=uniform_BKL, greedy=is_greedy, **options)
        self.model.train()
        decode, score = self.dataset.tokenizer.decode, self.cider.score
        pairs = zip(said.tolist(), batch.images.tolist(), strict=True)
        rewards = np.array([[score(decode(ids), image) / 100 for ids in each] for each, image in pairs])
        if is_greedy:
            return said[:, 1:], rewards[:, 1:], rewards[:, :1]
        return said, rewards, (rewards.sum(1, keepdims=True) - rewards) / (K - 1)

    # ---- evaluation

    def scores(self, split: str, numbers: Sequence[int], texts: Sequence[str]) -> Mapping[str, Score | str]:
        references = [self.dataset.texts[split].references[image] for image in numbers]
        values = caption_scores(texts, references)
        found: dict[str, float | str] = {"cider": values.pop("cider")}
        if split != "validation":
            found |= values | java_scores(texts, references)
        if (scenes := self.dataset.scenes) is not None:
            found["scene_f1"] = scene_f1(texts, [scenes[split][image] for image in numbers])
        return {
            key: value if isinstance(value, str) else Score(value, _SIGNATURES.get(key, _COCO))
            for key, value in found.items()
        }
