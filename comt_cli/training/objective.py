"""Training objectives: the summed negative log likelihood of the targets, or of smoothed ones. Summed, not averaged, so
that parts of a batch, devices and evaluation batches add up to the exact mean over targets."""

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
    """Make room for so many compiled versions of one function; what was compiled before is forgotten by default. All
    models share their code objects: the ninth in a process would silently run uncompiled."""
    if not keep_others:
        torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._dynamo.config.recompile_limit = versions
    torch._dynamo.config.accumulated_recompile_limit = max(256, versions)


CAPTURED: dict[str, Any] = {
    "triton.cudagraphs": True,
    "triton.cudagraph_or_error": True,
    "graph_partition": False,  # else code is split at what cannot be captured, and that part runs outside the graphs
}
"""The compiler's options with which its code is captured in CUDA graphs, and what cannot be captured is an error."""


def compiled(function: Callable[..., Any], *, captured: bool, fullgraph: bool = True) -> Callable[..., Any]:
    """`function` under `torch.compile`, for static shapes; `captured`: in CUDA graphs, see `as_one_pass`."""
    found = torch.compile(function, dynamic=False, fullgraph=fullgraph, options=CAPTURED if captured else None)
    return as_one_pass(found) if captured else found


def as_one_pass(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which calls code that is captured in CUDA graphs: every call overwrites what such code put out in
    earlier ones, gradients included. Raises as `capturing`."""

    def begin(*inputs: Any, **more: Any) -> Any:
        # Without it the compiler guesses where a pass begins: between two blocks, if they are compiled one by one.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with capturing():
            return function(*inputs, **more)

    return begin


class NotCaptured(UserError):
    """A pass cannot be captured in CUDA graphs."""


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Around passes that are captured in CUDA graphs. Raises `NotCaptured` where one of them cannot be."""
    try:
        yield
    except RuntimeError as error:
        # The line that says it; one on outputs that a later pass has overwritten is a fault of the program.
        if "overwritten" not in str(error) and (said := re.search(".*(cudagraph|captur).*", str(error))):
            raise NotCaptured(f"train.cuda_graphs: {said[0]}", "Say --set train.cuda_graphs=false.") from error
        raise


class Objective(nn.Module, ABC):
    """(inputs, targets) -> the sum over counted targets of -log p(target) by the model that it holds, fp32, in nats.
    `passes` is the part of the model that is compiled, once it is.

    With label smoothing e, in [0, 1), each target's term is in training, but not in evaluation, (1 - e)
    (-log p(target)) + e mean_v(-log p(v)), v over all outputs (torch's convention).
    """

    model: nn.Module

    def __init__(self, model: nn.Module, passes: Callable[..., Any], smoothing: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.passes = self._plain_passes = passes
        self._smoothing = smoothing

    @property
    def smoothing(self) -> float:
        """The smoothing of this mode: none in evaluation."""
        return self._smoothing if self.training else 0.0

    def compile_model(self, *, keep_others: bool = False, captured: bool = False, fullgraph: bool = True) -> None:
        """Compile the model's passes (static shapes); with `captured` into CUDA graphs, in whose memory their gradients
        are. Models compiled earlier in this process are forgotten unless `keep_others`."""
        prepare_compiler(keep_others=keep_others)
        self.passes = compiled(self._plain_passes, captured=captured, fullgraph=fullgraph)


class SummedLoss(Objective):
    """(the model's inputs, targets [B, T]) -> the summed loss of a model with a head over a vocabulary. What is below
    the head is compiled: the loss is already blocked. `kernels` is the recipe's `train.kernels`."""

    model: VocabularyModel

    def __init__(self, model: VocabularyModel, kernels: Kernels = "auto", smoothing: float = 0.0) -> None:
        super().__init__(model, model.body, smoothing)
        self.kernels = kernels

    def logits(self, *inputs: Tensor) -> Tensor:
        """The model's logits, [B, T, V], all of them, for what an evaluation counts beside the loss."""
        return self.model.outputs(self.passes(*inputs))

    def forward(self, *given: Tensor) -> Tensor:
        *inputs, targets_BT = given
        hidden_TD = self.passes(*inputs).flatten(0, 1)
        hidden_TD = hidden_TD.to(multiplied_in(hidden_TD))
        weight, bias = self.model.head_weight, self.model.head_bias
        return linear_cross_entropy(hidden_TD, weight, targets_BT.flatten(), self.kernels, self.smoothing, bias)


class ClassifierLoss(Objective):
    """(the model's inputs, labels [B]) -> the summed loss of a classifier; `passes` gives its logits, [B, classes]."""

    def __init__(self, model: nn.Module, smoothing: float = 0.0) -> None:
        super().__init__(model, model.forward, smoothing)

    def forward(self, *given: Tensor) -> Tensor:
        *inputs, labels_B = given
        return self.loss_of(self.passes(*inputs), labels_B, self.smoothing)

    @staticmethod
    def loss_of(logits_BN: Tensor, labels_B: Tensor, smoothing: float = 0.0) -> Tensor:
        """The summed loss of logits that are there already."""
        return F.cross_entropy(
            logits_BN.float(), labels_B, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing
        )


class NumberLoss(ClassifierLoss):
    """(the model's inputs, numbers [B]) -> the summed squared error of a model with one output, [B, 1]."""

    @staticmethod
    def loss_of(logits_BN: Tensor, labels_B: Tensor, smoothing: float = 0.0) -> Tensor:  # noqa: ARG004 - of classes
        """The summed squared error of outputs that are there already; a number that is `IGNORE` does not count."""
        errors_B = torch.where(labels_B == IGNORE, 0.0, logits_BN[:, 0].float() - labels_B)
        return errors_B.square().sum()
