"""Gradient norms over the depth of image classifiers: of the loss at every residual block's output (SAS, 2019, Figure
4), and of the filters of every convolution during training (CoMT, Figure 3).

Shapes: B images of a batch, L residual blocks.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from comt_cli.analysis.images import EXAMPLES, WatchedImages, stages_of
from comt_cli.analysis.model_figure import MARKERS, ModelFigure, Subject, evenly, mark_groups
from comt_cli.errors import UserError
from comt_cli.models.recorded import recorded
from comt_cli.report.figures.lines import log_ticks
from comt_cli.report.figures.style import SEQUENCE, layer_axis, page_figure, series_colours, style
from comt_cli.runs.directory import RunDirectory
from comt_cli.tasks.settings.images import ImageSettings

SET_IMAGES = {"glyphs10": 50_000, "glyphs100": 50_000, "cifar10": 50_000, "cifar100": 50_000, "imagenet": 1_281_167}
"""Training images of each set, if a run uses all."""
_LEAST_RATIO = 1.5
"""The least ratio that a logarithmic axis spans, so that rounding noise does not look like structure."""
_MOST_STEPS = 60
"""The number of steps beyond which maps are thinned out, so that each step stays visible."""
_STEP = "step "
"""The columns of a map: this prefix and the step's number."""


class BlockGradients(ModelFigure):
    """One line per row, the mean norm over images: a flat line is an even distribution over depth. Stages are those of
    the deepest network."""

    name: ClassVar = "block-gradients"
    title: ClassVar = "Gradients at the output of every residual block"

    def frame(self, of: Subject) -> pd.DataFrame:
        """The L2 norm of d loss / d output of every residual block for the first `EXAMPLES` training images, without
        augmentation: of each image's own cross-entropy, in evaluation mode. Rows `row, block, stage` (from 1), `mean`
        and `std` over the images, `examples`, their number. Raises `UserError` (see `WatchedImages`)."""
        frames = []
        for row, loaded in of.models.items():
            images, stages = WatchedImages(loaded, "train"), stages_of(loaded)
            parts = [_norms(loaded.model.blocks, images, *batch).double().cpu() for batch in images.first(EXAMPLES)]
            norms_LB = torch.cat(parts, dim=1).numpy()
            moments = {"mean": norms_LB.mean(axis=1), "std": norms_LB.std(axis=1), "examples": norms_LB.shape[1]}
            blocks = np.arange(1, len(stages) + 1)
            frames.append(pd.DataFrame({"row": row, "block": blocks, "stage": stages, **moments}))
        return pd.concat(frames, ignore_index=True)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        said = ["Means over images; the band is twice the standard error over these images, not over trainings."]
        for row, own in frame.groupby("row", sort=False):
            third = max(len(own) // 3, 1)
            means = np.log(own.sort_values("block")["mean"].clip(lower=1e-30))
            ratio = np.exp(means[:third].mean() - means[-third:].mean())
            said.append(f"Gradient of {row}, lower third of the blocks over the upper third: {ratio:.2g}.")
        return said

    def draw(self, frame: pd.DataFrame) -> Figure:
        colours = series_colours(frame["row"].nunique())
        deepest = frame.sort_values("block")["row"].iloc[-1]
        with style():
            figure = page_figure(2.5, 5.6)
            axes = figure.subplots()
            lines = zip(frame.groupby("row", sort=False), colours, itertools.cycle(MARKERS), strict=False)
            for (row, own), colour, marker in lines:
                axes.plot(own["block"], own["mean"], color=colour, marker=marker, label=str(row), clip_on=False)
                error = 2 * own["std"] / np.sqrt(own["examples"])
                low, high = np.maximum(own["mean"] - error, 1e-30), own["mean"] + error
                axes.fill_between(own["block"], low, high, color=colour, alpha=0.2, linewidth=0)
            _log_axis(axes, frame["mean"])
            blocks = frame[frame["row"] == deepest]
            layer_axis(axes, int(blocks["block"].max()))
            axes.grid(visible=False, axis="x")
            stages = blocks.groupby("stage")["block"]
            mark_groups(axes, {"stage 1" if stage == 1 else str(stage): own for stage, own in stages})
            axes.set_ylabel("norm of the gradient\nat the output (log scale)")
            axes.set_xlabel(f"residual block (mean over up to {frame['examples'].max():,} training images)")
            figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
        return figure


def _norms(blocks: nn.ModuleList, images: WatchedImages, x_BCHW: Tensor, labels_B: Tensor) -> Tensor:
    """The norm of each image's gradient at every block's output, [L, B]."""
    with recorded(blocks) as kept, torch.enable_grad():
        # The sum, so that an image's gradient does not depend on the others or on the batch size.
        loss = F.cross_entropy(images.logits(x_BCHW), labels_B, reduction="sum")
        gradients = torch.autograd.grad(loss, [kept[block][1] for block in blocks])
    return torch.stack([gradient_BCHW.flatten(1).norm(dim=1) for gradient_BCHW in gradients])


class ConvGradients(ModelFigure):
    """The norms that training logged (`train.gradient_norms_every`): over depth, over steps, and both. Norms of 0, of a
    branch that is switched off, count in no curve and stay white in a map."""

    name: ClassVar = "conv-gradients"
    title: ClassVar = "Gradients of the convolutions over depth and training"

    def frame(self, of: Subject) -> pd.DataFrame:
        """The L2 norm of the gradient of every convolution except gate filters, at every logged step of the first
        epochs: of whole batches, before clipping. Rows `row, convolution` (as `blocks.3.conv2`), `depth` (from the
        input, from 1; a skip path follows its block), `step`, `epoch` (the share of the training images seen), `norm`.
        Raises `UserError` if a run's task has no such drawing, or it logged no norms within these epochs."""
        rows = [line for row, run in of.runs.items() for line in _logged(row, run, of.epochs)]
        return pd.DataFrame(rows, columns=["row", "convolution", "depth", "step", "epoch", "norm"])

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Rows `row, convolution, depth, median, greatest`, and a column `step <n>` for each step of the maps."""
        return pd.concat([_by_convolution(own) for _, own in frame.groupby("row", sort=False)], ignore_index=True)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        steps = frame["step"]
        return [
            "L2 norms of the gradient before clipping: (a) median and, dashed, greatest of the logged steps for each "
            "convolution, then a map of the steps for each run.",
            f"{steps.nunique()} logged steps, {steps.min()} to {steps.max()}.",
        ]

    def draw(self, frame: pd.DataFrame) -> Figure:
        runs = [(str(row), own) for row, own in frame.groupby("row", sort=False)]
        rows = len(runs) // 2 + 1
        norms = frame.loc[frame["norm"] > 0, "norm"]
        ends = (norms.min() / 1.01, norms.max() * 1.01) if len(norms) else (1.0, 1.01)
        with style():
            figure = page_figure(0.4 + 0.14 * len(runs) + 1.9 * rows)
            first, *panels = figure.subplots(rows, 2, squeeze=False).ravel()
            colours = series_colours(len(runs))
            for number, ((row, own), colour) in enumerate(zip(runs, colours, strict=True)):
                table, panel = _by_convolution(own), panels[number]
                first.plot(table["depth"], table["median"], color=colour, linewidth=1.1, label=row)
                first.plot(table["depth"], table["greatest"], color=colour, linewidth=0.8, linestyle=(0, (2, 1)))
                image = _map(panel, table, LogNorm(*ends))
                title = f"({chr(ord('b') + number)}) {row}"
                panel.set_title(title, fontsize=min(8.5, 340 / len(title)))  # a long one would reach into the next
                panel.set_ylabel("training step")
            for panel in panels[len(runs) :]:
                panel.set_axis_off()
            _log_axis(first, norms)
            first.set_xlim(0.5, frame["depth"].max() + 0.5)
            first.xaxis.set_major_locator(MaxNLocator(8, integer=True))
            first.set(title="(a) of each convolution", ylabel="gradient norm (log scale)")
            figure.supxlabel("convolution, counted from the input", fontsize=8)
            figure.legend(loc="outside upper center")
            label = "gradient norm (log scale)"
            bar = figure.colorbar(image, ax=[first, *panels], pad=0.015, aspect=22 * rows, label=label)
            log_ticks(bar.ax, ends[1] / ends[0])
        return figure


def _logged(row: str, run: RunDirectory, epochs: float) -> list[tuple[Any, ...]]:
    spec = run.spec()
    if ConvGradients.name not in spec.task.drawings:
        raise UserError(f"{run.shown} is a run of {spec.task.model_kind}, which logs no gradients of convolutions")
    settings = spec.settings_as(ImageSettings)
    per_epoch = (settings.data.train_images or SET_IMAGES[settings.data.images]) / settings.train.batch_size
    rows = []
    for line in run.gradients():
        if (step := line["step"]) <= epochs * per_epoch:
            names = [name for name in line["norms"] if ".gate." not in name]  # in the order of the network
            for depth, name in enumerate(names, start=1):
                convolution = name.removesuffix(".weight").removesuffix(".convolution")
                rows.append((row, convolution, depth, step, step / per_epoch, line["norms"][name]))
    if not rows:
        how = "Train it with --set train.gradient_norms_every=10, which logs them at every tenth step."
        raise UserError(f"{run.shown} has logged no gradient norms within the first {epochs:g} epochs", how)
    return rows


def _by_convolution(frame: pd.DataFrame) -> pd.DataFrame:
    table = frame.pivot(index=["row", "convolution", "depth"], columns="step", values="norm").sort_index(level="depth")
    seen = table.where(table > 0)
    summary = pd.DataFrame({"median": seen.median(axis=1), "greatest": seen.max(axis=1)})
    return summary.join(
        table[evenly(list(table.columns), _MOST_STEPS)].rename(columns=lambda step: f"{_STEP}{step}")
    ).reset_index()


def _map(axes: Axes, table: pd.DataFrame, norm: LogNorm) -> QuadMesh:
    """A map whose lines are the logged steps; each extends halfway to its neighbours."""
    values = table.filter(regex=rf"^{_STEP}\d+$")
    steps = np.array([int(str(name).removeprefix(_STEP)) for name in values], dtype=np.float64)
    edges = np.concatenate([steps[:1] - 0.5, (steps[1:] + steps[:-1]) / 2, steps[-1:] + 0.5])
    shown = values.where(values > 0).to_numpy(dtype=np.float64).T
    mesh = axes.pcolormesh(np.arange(len(table) + 1) + 0.5, edges, shown, norm=norm, cmap=SEQUENCE, rasterized=True)
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    return mesh


def _log_axis(axes: Axes, values: pd.Series[float]) -> None:
    seen = values[values > 0]
    if seen.empty:
        return
    low, high = float(seen.min()), float(seen.max())
    air = max(_LEAST_RATIO * low / high, 1.0) ** 0.5 * (high / low) ** 0.05
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylim(low / air, high * air)
    log_ticks(axes, high / low * air**2)
