"""What is minimised: the summed negative log likelihood of the targets. Summed, not averaged, so that parts of a batch,
devices and evaluation batches add up to the exact token-weighted mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from comt_cli.kernels.linear_cross_entropy import linear_cross_entropy
from comt_cli.models.llama import Llama
from comt_cli.recipe.settings import Kernels


def prepare_compiler(*, versions: int = 8, keep_others: bool = False) -> None:
    """Make room for so many compiled versions of one function; what was compiled before is forgotten by default."""
    # All models share their code objects, and a code object has room for only so many compiled versions: without the
    # reset, and with a limit that only warns, the ninth model in a process would silently run uncompiled.
    if not keep_others:
        torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._dynamo.config.recompile_limit = versions
    torch._dynamo.config.accumulated_recompile_limit = max(256, versions)


class SummedLoss(nn.Module):
    """(tokens, targets), both [B, T] -> the sum over counted targets of -log p(target), fp32, in nats.

    One module holds model and loss, so that they are wrapped for several devices as one. `compile_model` compiles the
    model alone: the loss is already blocked, and a compiler would unroll its loop. `kernels` is the recipe's
    `train.kernels` and chooses between the losses (`kernels.choice.choose_loss`); the model chooses for itself.
    """

    def __init__(self, model: Llama, kernels: Kernels = "auto") -> None:
        super().__init__()
        self.model, self.kernels = model, kernels
        self._hidden = model.hidden

    def compile_model(self, *, keep_others: bool = False) -> None:
        """Compile the forward and backward pass of everything below the head (`torch.compile`, static shapes).

        Models compiled earlier in this process are forgotten unless `keep_others`.
        """
        prepare_compiler(keep_others=keep_others)
        self._hidden = torch.compile(self.model.hidden, dynamic=False, fullgraph=True)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        hidden_TD = self._hidden(tokens_BT).flatten(0, 1)
        device = hidden_TD.device.type
        if torch.is_autocast_enabled(device):
            hidden_TD = hidden_TD.to(torch.get_autocast_dtype(device))
        return linear_cross_entropy(hidden_TD, self.model.head_weight, targets_BT.flatten(), self.kernels)
