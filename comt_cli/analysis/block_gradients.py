"""How large the gradient of the loss is at the output of every residual block (SAS, 2019, Figure 4).

Shapes: B images of a batch, L residual blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.analysis.images import EXAMPLES, WatchedImages, watched_images
from comt_cli.analysis.watch import hooked
from comt_cli.exchange.loaded import LoadedImageModel


def block_gradients(models: Mapping[str, LoadedImageModel], examples: int = EXAMPLES) -> pd.DataFrame:
    """The L2 norm of d loss / d output of every residual block, for each of the first `examples` images of the
    training split, or of all there are, without augmentation.

    The loss is an image's own cross-entropy, and the network is in evaluation, where images do not act on each other.

    Rows `row, block` (from 1), `stage` (from 1), `mean` and `std` over the images, `examples` (how many there were).

    Raises:
        UserError: see `watched_images`; a model's outputs are not finite.
    """
    return pd.concat([_of_model(row, loaded, examples) for row, loaded in models.items()], ignore_index=True)


def stages_of(blocks: tuple[int, ...]) -> list[int]:
    """The stage of every residual block, from 1, where stages have so many."""
    return [stage for stage, number in enumerate(blocks, start=1) for _ in range(number)]


def _of_model(row: str, loaded: LoadedImageModel, examples: int) -> pd.DataFrame:
    images = watched_images(loaded, "train")
    norms_LB = np.concatenate(
        [_norms(loaded.model.blocks, images, *batch).double().cpu().numpy() for batch in images.first(examples)], axis=1
    )
    stages = stages_of(loaded.model.settings.shape().blocks)
    return pd.DataFrame(
        {
            "row": row,
            "block": np.arange(1, len(stages) + 1),
            "stage": stages,
            "mean": norms_LB.mean(axis=1),
            "std": norms_LB.std(axis=1),
            "examples": norms_LB.shape[1],
        }
    )


def _norms(blocks: nn.ModuleList, images: WatchedImages, x_BCHW: Tensor, labels_B: Tensor) -> Tensor:
    """The norm of each image's gradient at every block's output, [L, B]."""
    outputs: list[Tensor] = []

    def keep(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        outputs.append(output)

    with hooked((block, keep) for block in blocks), torch.enable_grad():
        # The sum: an image's gradient is then its own, and not divided by the size of the batch.
        loss = F.cross_entropy(images.logits(x_BCHW), labels_B, reduction="sum")
        gradients = torch.autograd.grad(loss, outputs)
    return torch.stack([gradient_BCHW.flatten(1).norm(dim=1) for gradient_BCHW in gradients])
