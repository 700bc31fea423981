"""Norm of the loss's gradient at the output of every residual block, one line a network (SAS, 2019, Figure 4).

Shapes: B images of a batch, L residual blocks.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from comt_cli.analysis.depth_axis import block_axis, examples_of, log_axis, stages_of
from comt_cli.analysis.images import EXAMPLES, WatchedImages, watched_images
from comt_cli.analysis.model_figure import ModelFigure
from comt_cli.analysis.subject import Subject
from comt_cli.analysis.watch import hooked
from comt_cli.exchange.loaded import LoadedImageModel
from comt_cli.report.figures.style import page_figure, series_colours, style

_MARKERS = "os^Dv"
_WIDTH = 5.6


class BlockGradients(ModelFigure):
    """One line a row, the mean norm over images, on a logarithmic axis: a flat line is an even distribution over depth.
    The band is twice the standard error of the mean on either side: of these images, not of several trainings. Networks
    may differ in depth; the stages marked are those of the deepest."""

    name: ClassVar = "block-gradients"
    title: ClassVar = "Gradients at the output of every residual block"

    def frame(self, of: Subject) -> pd.DataFrame:
        """The L2 norm of d loss / d output of every residual block, for each of the first `EXAMPLES` images of the
        training split, without augmentation. The loss is an image's own cross-entropy, and the network is in
        evaluation, where images do not act on each other.

        Rows `row, block` (from 1), `stage` (from 1), `mean` and `std` over the images, `examples` (how many there
        were), `method` (of the row).

        Raises:
            UserError: see `watched_images`; a model's outputs are not finite.
        """
        return pd.concat([_of_model(row, loaded) for row, loaded in of.models.items()], ignore_index=True)

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame.drop(columns="method")

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        """The numbers of each row, and those beside the first row. SAS's paper says of its Figure 4 that the gradients
        of x + F are basically the same in all blocks, that with SAS more is allocated to the lower ones, and that its
        gradients are greater: this is repeated beside a row of SAS alone."""
        said = [
            "Means over images, on a logarithmic scale; the band is twice the standard error over these images, not "
            "over trainings."
        ]
        rows = frame.groupby(["row", "method"], sort=False)
        thirds = {row: _thirds(own) for row, own in rows if own["mean"].min() > 0}
        for (row, _), (low, high, _, least, greatest) in thirds.items():
            said.append(
                f"The gradient of {row} is {low / high:.2g} times as large in the lower third of the blocks as in the "
                f"upper third; the greatest of a block is {greatest / least:.2g} times the least."
            )
        for (row, method), own in list(thirds.items())[1:]:
            (first, first_method), base = next(iter(thirds.items()))
            lower, overall = own[0] / base[0], own[2] / base[2]
            said.append(
                f"The gradient of {row} is {lower:.2g} times that of {first} in the lower third, and {overall:.2g} "
                "times over all blocks."
            )
            if (first_method, method) == ("addition", "sas-resnet"):
                lifts = own[0] / own[1] > base[0] / base[1]
                said.append(
                    f"The paper's figure shows more gradient in the lower blocks with SAS: {_seen(is_so=lifts)}. It "
                    f"shows greater gradients overall with SAS: {_seen(is_so=overall > 1)}. It shows those of x + F as "
                    f"basically the same in all blocks: here they differ by {base[4] / base[3]:.2g} times. One "
                    "training of each was seen."
                )
        return said

    def draw(self, frame: pd.DataFrame) -> Figure:
        rows = list(dict.fromkeys(frame["row"]))
        deepest = frame.sort_values("block")["row"].iloc[-1]
        with style():
            figure = page_figure(2.5, _WIDTH)
            axes = figure.subplots()
            for number, (row, colour) in enumerate(zip(rows, series_colours(len(rows)), strict=True)):
                own = frame[frame["row"] == row].sort_values("block")
                block, mean = own["block"].to_numpy(), own["mean"].to_numpy()
                axes.plot(block, mean, color=colour, marker=_MARKERS[number % len(_MARKERS)], label=row, clip_on=False)
                error = 2 * own["std"].to_numpy() / np.sqrt(own["examples"].to_numpy())
                low, high = np.maximum(mean - error, 1e-30), mean + error
                axes.fill_between(block, low, high, color=colour, alpha=0.2, linewidth=0)
            log_axis(axes, frame["mean"])
            block_axis(axes, frame[frame["row"] == deepest])
            axes.set_ylabel("norm of the gradient\nat the output (log scale)")
            axes.set_xlabel(f"residual block (mean over {examples_of(frame)} training images)")
            figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
        return figure


def _of_model(row: str, loaded: LoadedImageModel) -> pd.DataFrame:
    images = watched_images(loaded, "train")
    norms_LB = np.concatenate(
        [_norms(loaded.model.blocks, images, *batch).double().cpu().numpy() for batch in images.first(EXAMPLES)], axis=1
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
            "method": loaded.run.method["name"],
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


def _thirds(own: pd.DataFrame) -> tuple[float, float, float, float, float]:
    """Geometric means of the lower and the upper third of the blocks and of all, and the least and greatest block."""
    mean = own.sort_values("block")["mean"].to_numpy(dtype=float)
    size = max(len(mean) // 3, 1)
    low, high, whole = (float(np.exp(np.log(part).mean())) for part in (mean[:size], mean[-size:], mean))
    return low, high, whole, float(mean.min()), float(mean.max())


def _seen(*, is_so: bool) -> str:
    return "so it is here" if is_so else "here it is the other way round"
