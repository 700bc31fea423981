"""Norm of the loss's gradient at the output of every residual block, one line a network (SAS, 2019, Figure 4).

Shapes: B images of a batch, L residual blocks.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from comt_cli.analysis.depth_axis import MARKERS, block_axis, log_axis, stages_of
from comt_cli.analysis.images import EXAMPLES, WatchedImages, watched_images
from comt_cli.analysis.model_figure import ModelFigure
from comt_cli.analysis.observed import hooked
from comt_cli.analysis.subject import Subject
from comt_cli.exchange.loaded import LoadedImageModel
from comt_cli.report.figures.style import page_figure, series_colours, style


class BlockGradients(ModelFigure):
    """One line a row, the mean norm over images: a flat line is an even distribution over depth. The band is twice the
    standard error of the mean: of these images, not of several trainings. The stages marked are the deepest network's.
    """

    name: ClassVar = "block-gradients"
    title: ClassVar = "Gradients at the output of every residual block"

    def frame(self, of: Subject) -> pd.DataFrame:
        """The L2 norm of d loss / d output of every residual block, for each of the first `EXAMPLES` images of the
        training split, without augmentation. The loss is an image's own cross-entropy, and the network is in
        evaluation, where images do not act on each other.

        Rows `row, block` (from 1), `stage` (from 1), `mean` and `std` over the images, `examples` (how many there
        were). Raises `UserError` (see `watched_images`), or where a model's outputs are not finite.
        """
        return pd.concat([_of_model(row, loaded) for row, loaded in of.models.items()], ignore_index=True)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        said = ["Means over images; the band is twice the standard error over these images, not over trainings."]
        for row, own in frame.groupby("row", sort=False):
            third = max(len(own) // 3, 1)
            means = np.log(own.sort_values("block")["mean"].clip(lower=1e-30))
            ratio = np.exp(means[:third].mean() - means[-third:].mean())
            said.append(f"Gradient of {row}, lower third of the blocks over the upper third: {ratio:.2g}.")
        return said

    def draw(self, frame: pd.DataFrame) -> Figure:
        rows = list(dict.fromkeys(frame["row"]))
        deepest = frame.sort_values("block")["row"].iloc[-1]
        with style():
            figure = page_figure(2.5, 5.6)
            axes = figure.subplots()
            for (row, own), colour, marker in zip(
                frame.groupby("row", sort=False), series_colours(len(rows)), itertools.cycle(MARKERS), strict=False
            ):
                axes.plot(own["block"], own["mean"], color=colour, marker=marker, label=str(row), clip_on=False)
                error = 2 * own["std"] / np.sqrt(own["examples"])
                low, high = np.maximum(own["mean"] - error, 1e-30), own["mean"] + error
                axes.fill_between(own["block"], low, high, color=colour, alpha=0.2, linewidth=0)
            log_axis(axes, frame["mean"])
            block_axis(axes, frame[frame["row"] == deepest])
            axes.set_ylabel("norm of the gradient\nat the output (log scale)")
            axes.set_xlabel(f"residual block (mean over up to {frame['examples'].max():,} training images)")
            figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
        return figure


def _of_model(row: str, loaded: LoadedImageModel) -> pd.DataFrame:
    images = watched_images(loaded, "train")
    norms_LB = np.concatenate(
        [_norms(loaded.model.blocks, images, *batch).double().cpu().numpy() for batch in images.first(EXAMPLES)], axis=1
    )
    stages = stages_of(loaded.model.settings.shape().blocks)
    moments = {"mean": norms_LB.mean(axis=1), "std": norms_LB.std(axis=1), "examples": norms_LB.shape[1]}
    return pd.DataFrame({"row": row, "block": np.arange(1, len(stages) + 1), "stage": stages, **moments})


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
