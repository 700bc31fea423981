"""Training objectives: the sum of the targets' negative log likelihoods, with optional label smoothing. They are sums,
not means, so that parts of a batch, devices and evaluation batches add up to the exact mean over targets."""

from __future__ import annotations

import contextlib
import re
from abc import ABC
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.data.split import IGNORE
from comt_cli.errors import UserError
from comt_cli.kernels.gates import multiplied_in
from comt_cli.kernels.linear_cross_entropy import linear_cross_entropy
from comt_cli.models.base import VocabularyModel
from comt_cli.recipe.settings import Kernels


def prepare_compiler(*, versions: int = 8, keep_others: bool = False) -> None:
    """Allow `versions` compiled versions of one function, and by default forget earlier ones. All models share their
    code objects: with torch's limit, the ninth version in a process would silently run uncompiled."""
    if not keep_others:
        torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._dynamo.config.recompile_limit = versions
    torch._dynamo.config.accumulated_recompile_limit = max(256, versions)


CAPTURED: dict[str, Any] = {
    "triton.cudagraphs": True,
    "triton.cudagraph_or_error": True,
    "graph_partition": False,  # else code that cannot be captured would run outside the graphs
}
"""Compiler options that capture code in CUDA graphs; code that cannot be captured is an error."""


def compiled(function: Callable[..., Any], *, captured: bool, fullgraph: bool = True) -> Callable[..., Any]:
    """`function` under `torch.compile`, for static shapes; with `captured` in CUDA graphs (see `as_one_pass`)."""
    found = torch.compile(function, dynamic=False, fullgraph=fullgraph, options=CAPTURED if captured else None)
    return as_one_pass(found) if captured else found


def as_one_pass(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which calls code captured in CUDA graphs: every call overwrites the outputs and gradients of earlier
    calls. Raises as `capturing` does."""

    def begin(*inputs: Any, **more: Any) -> Any:
        # Otherwise the compiler guesses the begin of a pass, even between two blocks that are compiled separately.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with capturing():
            return function(*inputs, **more)

    return begin


class NotCaptured(UserError):
    """A pass cannot be captured in CUDA graphs."""


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """A context for passes captured in CUDA graphs. Raises `NotCaptured` if one cannot be captured."""
    try:
        yield
    except RuntimeError as error:
        # The line with the reason; "overwritten" outputs are a defect of this program.
        if "overwritten" not in str(error) and (said := re.search(".*(cudagraph|captur).*", str(error))):
            raise NotCaptured(f"train.cuda_graphs: {said[0]}", "Use --set train.cuda_graphs=false.") from error
        raise


class Objective(nn.Module, ABC):
    """(inputs, targets) -> the sum over counted targets of -log p(target) under the contained model, fp32, in nats.
    `passes` is the part of the model that can be compiled.

    With label smoothing e, in [0, 1), each target's term in training is (1 - e) (-log p(target)) + e mean_v(-log p(v)),
    with v over all outputs (torch's convention). Evaluation is without smoothing.
    """

    model: nn.Module

    def __init__(self, model: nn.Module, passes: Callable[..., Any], smoothing: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.passes = self._plain_passes = passes
        self._smoothing = smoothing

    @property
    def smoothing(self) -> float:
        """The smoothing in this mode: 0 in evaluation."""
        return self._smoothing if self.training else 0.0

    def compile_model(self, *, keep_others: bool = False, captured: bool = False, fullgraph: bool = True) -> None:
        """Compile the model's passes (static shapes), with `captured` into CUDA graphs, whose memory also holds the
        gradients. Earlier compiled models of this process are forgotten unless `keep_others`."""
        prepare_compiler(keep_others=keep_others)
        self.passes = compiled(self._plain_passes, captured=captured, fullgraph=fullgraph)


class SummedLoss(Objective):
    """(the model's inputs, targets [B, T]) -> the summed loss of a model with a head over a vocabulary. Everything
    below the head is compiled; the loss is computed in blocks already. `kernels` is the recipe's `train.kernels`."""

    model: VocabularyModel

    def __init__(self, model: VocabularyModel, kernels: Kernels = "auto", smoothing: float = 0.0) -> None:
        super().__init__(model, model.body, smoothing)
        self.kernels = kernels

    def logits(self, *inputs: Tensor) -> Tensor:
        """All logits of the model, [B, T, V], for other metrics of an evaluation."""
        return self.model.outputs(self.passes(*inputs))

    def forward(self, *given: Tensor) -> Tensor:
        *inputs, targets_BT = given
        hidden_TD = self.passes(*inputs).flatten(0, 1)
        hidden_TD = hidden_TD.to(multiplied_in(hidden_TD))
        weight, bias = self.model.head_weight, self.model.head_bias
        return linear_cross_entropy(hidden_TD, weight, targets_BT.flatten(), self.kernels, self.smoothing, bias)


class ClassifierLoss(Objective):
    """(the model's inputs, labels [B]) -> the summed loss of a classifier; `passes` returns logits, [B, classes]."""

    def __init__(self, model: nn.Module, smoothing: float = 0.0) -> None:
        super().__init__(model, model.forward, smoothing)

    def forward(self, *given: Tensor) -> Tensor:
        *inputs, labels_B = given
        return self.loss_of(self.passes(*inputs), labels_B, self.smoothing)

    @staticmethod
    def loss_of(logits_BN: Tensor, labels_B: Tensor, smoothing: float = 0.0) -> Tensor:
        """The summed loss of given logits."""
        return F.cross_entropy(
            logits_BN.float(), labels_B, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing
        )


class NumberLoss(ClassifierLoss):
    """(the model's inputs, numbers [B]) -> the summed squared error of a model with one output, [B, 1]."""

    @staticmethod
    def loss_of(logits_BN: Tensor, labels_B: Tensor, smoothing: float = 0.0) -> Tensor:  # noqa: ARG004 - of classes
        """The summed squared error of given outputs; numbers equal to `IGNORE` do not count."""
        errors_B = torch.where(labels_B == IGNORE, 0.0, logits_BN[:, 0].float() - labels_B)
        return errors_B.square().sum()
