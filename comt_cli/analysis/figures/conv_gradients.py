"""The gradient's norm at every convolution over depth and training, one colour and one map a run (CoMT, Figure 3).

The numbers are those that training logged, of whole batches, before clipping (`train.gradient_norms_every`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from comt_cli import words
from comt_cli.analysis.depth_axis import log_axis
from comt_cli.analysis.model_figure import ModelFigure
from comt_cli.analysis.subject import Subject
from comt_cli.errors import UserError
from comt_cli.report.figures.lines import log_ticks
from comt_cli.report.figures.style import QUIET, SEQUENCE, page_figure, series_colours, style
from comt_cli.runs.directory import RunDirectory
from comt_cli.tasks import tasks
from comt_cli.tasks.settings.images import ImageSettings

SET_IMAGES = {"glyphs10": 50_000, "glyphs100": 50_000, "cifar10": 50_000, "cifar100": 50_000, "imagenet": 1_281_167}
"""Images of the training split of each set, where a run uses all."""
_MOST_STEPS = 60
"""More steps than this are thinned out in the maps: a line of a map is then wide enough to see."""
_MAPS_ABREAST = 2
_STEP = "step "
"""The columns of a map: this, and the step's number."""
_LOOKS: dict[str, tuple[tuple[float, Sequence[float]], float]] = {
    "median": ((0, ()), 1.1),
    "greatest": ((0, (2, 1)), 0.8),
}
"""Dashes and width of each line."""


class ConvGradients(ModelFigure):
    """Panel (a): the median and the greatest norm of the logged steps over depth, panel (b): those of the convolutions
    over the steps, where peaks early in training are seen; all runs on one logarithmic axis. Panels (c), (d) ...: a map
    of depth and step for each run, all of one scale of colours.

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
        return pd.concat([_by_convolution(own) for _, own in _by_row(frame)], ignore_index=True)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        reading = (
            "L2 norms of the gradient before clipping, on logarithmic scales: (a) median and greatest of the logged "
            "steps for each convolution, (b) median and greatest of the convolutions at each step, and a map for each "
            "run."
        )
        return [reading, *(_finding(row, own) for row, own in _by_row(frame))]

    def draw(self, frame: pd.DataFrame) -> Figure:
        rows = [row for row, _ in _by_row(frame)]
        by_depth, by_step = ({row: make(own) for row, own in _by_row(frame)} for make in (_by_convolution, _by_step))
        legend_columns = 2 if max(map(len, rows)) <= 50 else 1
        map_rows = -(-len(rows) // _MAPS_ABREAST)
        heights = 2.45 + 0.14 * -(-(len(rows) + len(_LOOKS)) // legend_columns), 0.25 + 1.6 * map_rows
        norms = frame.loc[frame["norm"] > 0, "norm"]
        ends = (norms.min() / 1.01, norms.max() * 1.01) if len(norms) else (1.0, 1.01)
        with style():
            figure = page_figure(sum(heights))
            above, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)[:, 0]
            left, right = above.subplots(1, 2, sharey=True)
            _lines(left, by_depth, "depth")
            _lines(right, by_step, "step")
            both = pd.concat([*by_depth.values(), *by_step.values()])
            log_axis(left, pd.concat([both[look] for look in _LOOKS]))
            _depth_axis(left, int(frame["depth"].max()))
            left.set(xlabel="convolution, counted from the input", ylabel="gradient norm (log scale)")
            right.set_xlabel("training step")
            left.set_title("(a) of each convolution")
            right.set_title("(b) at each step")
            above.legend(handles=_handles(rows), loc="outside lower center", ncols=legend_columns)
            panels = below.subplots(map_rows, min(len(rows), _MAPS_ABREAST), squeeze=False)
            for number, (row, panel) in enumerate(zip(rows, panels.ravel(), strict=False)):
                image = _map(panel, by_depth[row], LogNorm(*ends))
                title = f"({chr(ord('c') + number)}) {row}"
                panel.set_title(title, fontsize=min(8.5, 340 / len(title)))  # a long one would reach into the next
            for panel in panels.ravel()[len(rows) :]:
                panel.set_axis_off()
            for line in panels:
                line[0].set_ylabel("training step")
            below.supxlabel("convolution, counted from the input", fontsize=8)
            bar = below.colorbar(image, ax=panels, pad=0.015, aspect=22 * map_rows, label="gradient norm (log scale)")
            log_ticks(bar.ax, ends[1] / ends[0])
        return figure


def _logged(row: str, run: RunDirectory, epochs: float) -> list[tuple[Any, ...]]:
    """The rows of one run."""
    spec, name = run.spec(), ConvGradients.name
    if name not in spec.task.drawings:
        those = words.listing(task.model_kind for task in tasks().values() if name in task.drawings)
        raise UserError(
            f"{run.shown} is a run of {spec.task.model_kind}; the gradients of convolutions are those of {those}"
        )
    settings, lines = spec.settings_as(ImageSettings), run.gradients()
    if not lines:
        every = settings.train.gradient_norms_every
        how = "Train it with --set train.gradient_norms_every=10, which logs them at every tenth step."
        wait = f"It is to log them every {every} steps: wait until it has, or train it."
        raise UserError(f"{run.shown} has logged no gradient norms", how if every is None else wait)
    per_epoch = (settings.data.train_images or SET_IMAGES[settings.data.images]) / settings.train.batch_size
    rows = [
        (row, convolution, depth, line["step"], line["step"] / per_epoch, norm)
        for line in lines
        if line["step"] <= epochs * per_epoch
        for depth, (convolution, norm) in enumerate(_own(line["norms"]).items(), start=1)
    ]
    if not rows:
        raise UserError(
            f"{run.shown} has logged no gradient norms within the first {epochs:g} epochs",
            f"The first are of step {lines[0]['step']}; an epoch has {per_epoch:g}.",
        )
    return rows


def _own(norms: Mapping[str, float]) -> dict[str, float]:
    """The network's own convolutions, in the order of the log, which is that of the network; by their places."""
    return {
        name.removesuffix(".weight").removesuffix(".convolution"): norm
        for name, norm in norms.items()
        if ".gate." not in name
    }


def _by_row(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(row), own) for row, own in frame.groupby("row", sort=False)]


def _by_convolution(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a convolution, as in `ConvGradients.table`."""
    table = frame.pivot(index=["row", "convolution", "depth"], columns="step", values="norm").sort_index(level="depth")
    seen = table.where(table > 0)
    steps = table.columns.to_numpy()
    shown = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_STEPS)).round().astype(int))]
    summary = pd.DataFrame({"median": seen.median(axis=1), "greatest": seen.max(axis=1)})
    return summary.join(table[shown].rename(columns=lambda step: f"{_STEP}{step}")).reset_index()


def _finding(row: str, frame: pd.DataFrame) -> str:
    """The logged steps of a run, and its main numbers."""
    table, steps = _by_convolution(frame), frame["step"]
    logged = f"{row}: {steps.nunique()} logged steps, {steps.min()} to {steps.max()}"
    if table["greatest"].isna().all():
        return f"{logged}; all norms are 0."
    greatest = table.iloc[int(table["greatest"].argmax())]
    return (
        f"{logged}; median over convolutions {table['median'].median():.2g}; the greatest norm of a step is that of "
        f"{greatest['convolution']}, {greatest['greatest']:.2g}."
    )


def _by_step(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a step: the median and the greatest norm of the convolutions; norms of 0 count in neither."""
    seen = frame[frame["norm"] > 0].groupby("step")["norm"]
    return pd.DataFrame({"median": seen.median(), "greatest": seen.max()}).reset_index()


def _lines(axes: Axes, tables: Mapping[str, pd.DataFrame], x: str) -> None:
    """The lines of a panel, over depth or steps."""
    for table, colour in zip(tables.values(), series_colours(len(tables)), strict=True):
        for name, (dashes, width) in _LOOKS.items():
            axes.plot(table[x].to_numpy(), table[name].to_numpy(), color=colour, linestyle=dashes, linewidth=width)


def _handles(names: list[str]) -> list[Line2D]:
    """The legend: runs by colour, measures by dashes."""
    runs = zip(names, series_colours(len(names)), strict=True)
    return [Line2D([], [], color=colour, label=name) for name, colour in runs] + [
        Line2D([], [], color=QUIET, linestyle=dashes, linewidth=width, label=name)
        for name, (dashes, width) in _LOOKS.items()
    ]


def _depth_axis(axes: Axes, depth: int) -> None:
    axes.set_xlim(0.5, depth + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))


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
    _depth_axis(axes, len(table))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    return mesh
