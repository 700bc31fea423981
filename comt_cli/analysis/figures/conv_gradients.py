"""The gradient's norm at every convolution over depth and training, one colour and one map a run (CoMT, Figure 3).

The numbers are those that training logged, of whole batches, before clipping (`train.gradient_norms_every`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from comt_cli.analysis.depth_axis import log_axis
from comt_cli.analysis.model_figure import ModelFigure
from comt_cli.analysis.subject import Subject
from comt_cli.errors import UserError
from comt_cli.report.figures.lines import log_ticks
from comt_cli.report.figures.style import QUIET, SEQUENCE, page_figure, series_colours, style
from comt_cli.runs.directory import RunDirectory
from comt_cli.tasks.settings.images import ImageSettings

SET_IMAGES = {"glyphs10": 50_000, "glyphs100": 50_000, "cifar10": 50_000, "cifar100": 50_000, "imagenet": 1_281_167}
"""Images of the training split of each set, where a run uses all."""
_MOST_STEPS = 60
"""More steps than this are thinned out in the maps: a line of a map is then wide enough to see."""
_MAPS_ABREAST = 2
_STEP = "step "
"""The columns of a map: this, and the step's number."""
_LOOKS: dict[str, dict[str, Any]] = {
    "median": {"linestyle": "solid", "linewidth": 1.1},
    "greatest": {"linestyle": (0, (2, 1)), "linewidth": 0.8},
}


class ConvGradients(ModelFigure):
    """Panel (a): the median and the greatest norm of the logged steps over depth, panel (b): those of the convolutions
    over the steps; all runs on one logarithmic axis. Panels (c), (d) ...: a map of depth and step for each run, all of
    one scale of colours.

    Norms of 0, as where a residual branch is switched off, count in neither and stay white in a map.
    """

    name: ClassVar = "conv-gradients"
    title: ClassVar = "Gradients of the convolutions over depth and training"

    def frame(self, of: Subject) -> pd.DataFrame:
        """The L2 norm of the gradient of every convolution at every logged step of the first epochs, for each run.

        The convolutions are the network's own: the stem, those of the blocks and of their skip paths, not the filters
        of gates. A skip path's counts behind those of its block.

        Rows `row, convolution` (as in `blocks.3.conv2`), `depth` (counted from the input, from 1), `step`, `epoch` (the
        share of the training images that was seen by then), `norm`.

        Raises:
            UserError: a run is of a task without this drawing, or has logged no norms, or none within these epochs.
        """
        rows = [line for row, run in of.runs.items() for line in _logged(row, run, of.request.epochs)]
        return pd.DataFrame(rows, columns=["row", "convolution", "depth", "step", "epoch", "norm"])

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Rows `row, convolution, depth, median, greatest`, and for each step of the maps a column `step <n>`."""
        return pd.concat([_by_convolution(own) for _, own in frame.groupby("row", sort=False)], ignore_index=True)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        steps = frame["step"]
        return [
            "L2 norms of the gradient before clipping: (a) median and greatest of the logged steps for each "
            "convolution, (b) median and greatest of the convolutions at each step, and a map for each run.",
            f"{steps.nunique()} logged steps, {steps.min()} to {steps.max()}.",
        ]

    def draw(self, frame: pd.DataFrame) -> Figure:
        runs = [(str(row), own) for row, own in frame.groupby("row", sort=False)]
        colours = series_colours(len(runs))
        legend_columns = 2 if max(len(row) for row, _ in runs) <= 50 else 1
        map_rows = -(-len(runs) // _MAPS_ABREAST)
        heights = 2.45 + 0.14 * -(-(len(runs) + len(_LOOKS)) // legend_columns), 0.25 + 1.6 * map_rows
        norms = frame.loc[frame["norm"] > 0, "norm"]
        ends = (norms.min() / 1.01, norms.max() * 1.01) if len(norms) else (1.0, 1.01)
        with style():
            figure = page_figure(sum(heights))
            above, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)[:, 0]
            left, right = above.subplots(1, 2, sharey=True)
            panels = below.subplots(map_rows, min(len(runs), _MAPS_ABREAST), squeeze=False)
            for panel in panels.ravel()[len(runs) :]:
                panel.set_axis_off()
            for number, ((row, own), colour) in enumerate(zip(runs, colours, strict=True)):
                by_depth, seen = _by_convolution(own), own[own["norm"] > 0].groupby("step")["norm"]
                by_step = pd.DataFrame({"median": seen.median(), "greatest": seen.max()})
                for look, how in _LOOKS.items():
                    left.plot(by_depth["depth"], by_depth[look], color=colour, **how)
                    right.plot(by_step.index, by_step[look], color=colour, **how)
                panel = panels.ravel()[number]
                image = _map(panel, by_depth, LogNorm(*ends))
                title = f"({chr(ord('c') + number)}) {row}"
                panel.set_title(title, fontsize=min(8.5, 340 / len(title)))  # a long one would reach into the next
            log_axis(left, norms)
            left.set_xlim(0.5, frame["depth"].max() + 0.5)
            left.xaxis.set_major_locator(MaxNLocator(8, integer=True))
            left.set(xlabel="convolution, counted from the input", ylabel="gradient norm (log scale)")
            left.set_title("(a) of each convolution")
            right.set_title("(b) at each step")
            right.set_xlabel("training step")
            handles = [Line2D([], [], color=colour, label=row) for (row, _), colour in zip(runs, colours, strict=True)]
            handles += [Line2D([], [], color=QUIET, label=look, **how) for look, how in _LOOKS.items()]
            above.legend(handles=handles, loc="outside lower center", ncols=legend_columns)
            for line in panels:
                line[0].set_ylabel("training step")
            below.supxlabel("convolution, counted from the input", fontsize=8)
            bar = below.colorbar(image, ax=panels, pad=0.015, aspect=22 * map_rows, label="gradient norm (log scale)")
            log_ticks(bar.ax, ends[1] / ends[0])
        return figure


def _logged(row: str, run: RunDirectory, epochs: float) -> list[tuple[Any, ...]]:
    """The rows of one run."""
    spec = run.spec()
    if ConvGradients.name not in spec.task.drawings:
        raise UserError(f"{run.shown} is a run of {spec.task.model_kind}, which logs no gradients of convolutions")
    settings, lines = spec.settings_as(ImageSettings), run.gradients()
    per_epoch = (settings.data.train_images or SET_IMAGES[settings.data.images]) / settings.train.batch_size
    rows = [
        (row, convolution, depth, line["step"], line["step"] / per_epoch, norm)
        for line in lines
        if line["step"] <= epochs * per_epoch
        for depth, (convolution, norm) in enumerate(_own(line["norms"]).items(), start=1)
    ]
    if not rows:
        every = settings.train.gradient_norms_every
        how = "Train it with --set train.gradient_norms_every=10, which logs them at every tenth step."
        within = f" within the first {epochs:g} epochs" if lines else ""
        raise UserError(f"{run.shown} has logged no gradient norms{within}", how if every is None else None)
    return rows


def _own(norms: dict[str, float]) -> dict[str, float]:
    """The network's own convolutions, in the order of the log, which is that of the network; by their places."""
    own = {name: norm for name, norm in norms.items() if ".gate." not in name}
    return {name.removesuffix(".weight").removesuffix(".convolution"): norm for name, norm in own.items()}


def _by_convolution(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a convolution, as in `ConvGradients.table`."""
    table = frame.pivot(index=["row", "convolution", "depth"], columns="step", values="norm").sort_index(level="depth")
    seen = table.where(table > 0)
    steps = table.columns.to_numpy()
    shown = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_STEPS)).round().astype(int))]
    summary = pd.DataFrame({"median": seen.median(axis=1), "greatest": seen.max(axis=1)})
    return summary.join(table[shown].rename(columns=lambda step: f"{_STEP}{step}")).reset_index()


def _map(axes: Axes, table: pd.DataFrame, norm: LogNorm) -> QuadMesh:
    """A map's lines are the logged steps, each as wide as it is to halfway to the next."""
    named = [name for name in map(str, table.columns) if name.startswith(_STEP)]
    steps = np.array([int(name.removeprefix(_STEP)) for name in named], dtype=np.float64)
    values = table[named].to_numpy(dtype=np.float64).T
    edges = np.concatenate([steps[:1] - 0.5, (steps[1:] + steps[:-1]) / 2, steps[-1:] + 0.5])
    across = np.arange(len(table) + 1) + 0.5
    shown = np.where(values > 0, values, np.nan)
    mesh = axes.pcolormesh(across, edges, shown, norm=norm, cmap=SEQUENCE, rasterized=True)
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    return mesh
