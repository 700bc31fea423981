"""Base class of encoder-decoders' runs: the likelihood for training and evaluation, and the texts of beam search, which
an interrupted evaluation does not decode again."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comt_cli.data.split import IGNORE, B, Split
from comt_cli.files import write_text
from comt_cli.generation.beam import NOTHING, Forbidden, NotFinite, decode
from comt_cli.generation.transcript import Transcript, one_line
from comt_cli.models.transformer import EncoderDecoder
from comt_cli.scoring.metrics import Score
from comt_cli.tasks.settings.translation import DecoderTrainSettings
from comt_cli.training.devices import compute_context
from comt_cli.training.evaluation import Evaluation, mean_over, perplexity
from comt_cli.training.objective import Objective, SummedLoss
from comt_cli.training.tasks import TextRun


class EncoderDecoderRun(TextRun[B]):
    """An encoder-decoder that predicts every token of a target from its source and the preceding tokens. `likelihood`
    is evaluated, and minimised by most tasks; `counted` is the result's key for the number of a split's sources."""

    counted: ClassVar[str]
    model: EncoderDecoder
    likelihood: SummedLoss

    def objective_of(self, model: EncoderDecoder) -> Objective:
        assert isinstance(self.settings, DecoderTrainSettings)
        # As in tensor2tensor, the target has 1 - e and each other word e / (V - 1); torch spreads e over all V.
        smoothing = self.settings.label_smoothing * model.vocabulary / (model.vocabulary - 1)
        self.likelihood = SummedLoss(model, self.settings.kernels, smoothing)
        return self.likelihood

    @abstractmethod
    def numbers(self, split: Split[B], batch: B) -> NDArray[np.int64]:
        """The numbers of a batch's sources in their split, int64 [B]."""

    @abstractmethod
    def longest(self, *source: Tensor) -> list[int]:
        """The maximum number of tokens of each source's hypotheses, the end included."""

    @property
    def forbidden(self) -> Forbidden:
        """Tokens that hypotheses must not have."""
        return NOTHING

    @abstractmethod
    def scores(self, split: str, numbers: Sequence[int], texts: Sequence[str]) -> Mapping[str, Score | str]:
        """The scores of the texts decoded from the sources with these numbers; for a missing score the reason."""

    def evaluate(self, batches: Iterable[B], split: Split[B]) -> Evaluation:
        """Loss and perplexity of the references, and the scores of the decoded texts, which are in `outputs`. Nothing
        is scored if the loss is not finite."""
        name = next(name for name, own in {"validation": self.validation, **self.tests}.items() if own is split)
        part, key = f"part-{self.world.rank}.jsonl", f"{self.spec.id} {self.outputs.name}"
        transcript = Transcript(self.outputs, name, part, key)
        decoded = self._decoded(batches, split, transcript)

        def tally(*inputs: Tensor) -> Tensor:
            return torch.stack([self.likelihood(*inputs), (inputs[-1] != IGNORE).sum()])

        loss, tokens, _ = mean_over(self.likelihood, decoded, tally, self.settings.precision, self.world)
        numbers = range(len(self.dataset.texts[name].references))
        extent = {"tokens": tokens, self.counted: len(numbers)}
        if not math.isfinite(loss):
            return Evaluation(loss, {}, extent)
        metrics: dict[str, float | None] = {"target_perplexity": perplexity(loss)}
        self.world.barrier()  # all texts are written now
        texts = transcript.texts(numbers)
        self.world.barrier()  # all processes have read them
        if texts is None:
            return Evaluation(loss, metrics, extent)
        if self.world.is_main:
            write_text(self.outputs / f"{name}.txt", "".join(f"{text}\n" for text in texts))
        scores = self.scores(name, numbers, texts)
        found = {key: score for key, score in scores.items() if not isinstance(score, str)}
        missing = {key: score for key, score in scores.items() if isinstance(score, str)}
        metrics |= {key: found[key].value if key in found else None for key in scores}
        return Evaluation(loss, metrics, extent, {key: score.signature for key, score in found.items()}, missing)

    def _decoded(self, batches: Iterable[B], split: Split[B], transcript: Transcript) -> Iterable[tuple[Tensor, ...]]:
        """The batches as tensors. Sources that are not in the transcript are decoded on the way, always as a whole
        batch, because rounding may depend on its composition."""
        for batch in batches:
            tensors = self.tensors(batch)
            numbers = self.numbers(split, batch)
            open_B = np.array([int(number) not in transcript.done for number in numbers])
            if batch.target_count and open_B.any():
                texts = self._texts(*tensors[:-2])
                if texts is not None:
                    transcript.add({int(numbers[row]): texts[row] for row in np.flatnonzero(open_B)})
            yield tensors

    def _texts(self, *source: Tensor) -> list[str] | None:
        """The texts of sources; None if the network's outputs are not finite."""
        settings: Any = self.spec.settings  # they have `decode`
        tokenizer, lengths = self.dataset.tokenizer, self.longest(*source)
        options: dict[str, Any] = {"special": tokenizer.special, "max_lengths": lengths, "forbidden": self.forbidden}
        try:
            with compute_context(self.settings.precision, self.world.device):
                found = decode(self.model, *source, settings=settings.decode, **options)
        except NotFinite:
            return None
        return [one_line(tokenizer.decode(each[0].tokens)) for each in found]
