"""The gradient's norm at every convolution over depth and training, one colour and one map a run (CoMT, Figure 3).

The numbers are those that training logged, of whole batches, before clipping (`train.gradient_norms_every`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from comt_cli import words
from comt_cli.analysis.model_figure import ModelFigure
from comt_cli.analysis.subject import Subject
from comt_cli.errors import UserError
from comt_cli.report.figures.broken import Ends, robust_ends, strip
from comt_cli.report.figures.broken import height as broken_height
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
    over the steps, where peaks early in training are seen; all runs on one logarithmic axis, which a convolution or
    step far from all others does not rule. Panels (c), (d) ...: a map of depth and step for each run, all of one scale
    of colours.

    Norms of 0, as where a residual branch is switched off, count in neither and stay white in a map. Where the runs did
    not log the same steps, the legend has each run's own: a median over 20 steps would pass for one over 300.
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
        found = [
            f"{row}: median over convolutions {own['median'].median():.2g}; the greatest norm of a step is that of "
            f"{own['convolution'].iloc[int(own['greatest'].argmax())]}, {own['greatest'].max():.2g}."
            for row, own in _by_row(self.table(frame))
            if own["greatest"].notna().any()
        ]
        return [reading, *found]

    def draw(self, frame: pd.DataFrame) -> Figure:
        rows = [row for row, _ in _by_row(frame)]
        by_depth, by_step = ({row: make(own) for row, own in _by_row(frame)} for make in (_by_convolution, _by_step))
        names, span = _names(frame)
        legend_columns = _legend_columns(names)
        map_rows = -(-len(rows) // _MAPS_ABREAST)
        heights = 2.45 + 0.14 * -(-(len(rows) + len(_LOOKS)) // legend_columns), 0.25 + 1.6 * map_rows
        both = pd.concat([*by_depth.values(), *by_step.values()])
        ends = robust_ends(both[["median", "greatest"]].to_numpy().ravel(), log=True)
        with style():
            figure = page_figure(sum(heights))
            above, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)[:, 0]
            left, right = above.subplots(1, 2, sharey=True)
            for axes, lines, x in ((left, by_depth, "depth"), (right, by_step, "step")):
                _lines(axes, lines, x)
            _norm_axis(left, ends.low, ends.high)
            _depth_axis(left, int(frame["depth"].max()))
            left.set(xlabel="convolution, counted from the input", ylabel="gradient norm (log scale)")
            right.set_xlabel("training step")
            left.set_title(f"(a) of each convolution{span}")
            right.set_title("(b) at each step")
            for axes, lines, x in ((left, by_depth, "depth"), (right, by_step, "step")):
                _off_scale(axes, lines, x, ends)
            above.legend(handles=_handles(names), loc="outside lower center", ncols=legend_columns)
            colours = _colour_ends(frame["norm"])
            panels = below.subplots(map_rows, min(len(rows), _MAPS_ABREAST), squeeze=False)
            for number, (row, panel) in enumerate(zip(rows, panels.ravel(), strict=False)):
                image = _map(panel, by_depth[row], LogNorm(*colours))
                title = f"({chr(ord('c') + number)}) {row}"
                panel.set_title(title, fontsize=min(8.5, 340 / len(title)))  # a long one would reach into the next
            for panel in panels.ravel()[len(rows) :]:
                panel.set_axis_off()
            for line in panels:
                line[0].set_ylabel("training step")
            below.supxlabel("convolution, counted from the input", fontsize=8)
            bar = below.colorbar(image, ax=panels, pad=0.015, aspect=22 * map_rows, label="gradient norm (log scale)")
            _few_numbers(bar.ax.yaxis, *colours)
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


def _by_step(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a step: the median and the greatest norm of the convolutions; norms of 0 count in neither."""
    seen = frame[frame["norm"] > 0].groupby("step")["norm"]
    return pd.DataFrame({"median": seen.median(), "greatest": seen.max()}).reset_index()


def _names(frame: pd.DataFrame) -> tuple[list[str], str]:
    """Each run's name in the legend, and the title's note of the steps: where all logged the same ones it is theirs,
    else each name has its own."""
    steps = {row: sorted(set(own["step"])) for row, own in _by_row(frame)}
    first, *others = steps.values()
    if all(each == first for each in others):
        return list(steps), f", {_span(first)}"
    return [f"{row}, {f'{len(each)} of ' if len(each) > 1 else ''}{_span(each)}" for row, each in steps.items()], ""


def _span(steps: list[int]) -> str:
    first, last = steps[0], steps[-1]
    return f"steps {first} to {last}" if first < last else f"step {first}"


def _legend_columns(names: list[str]) -> int:
    """As many as a legend of page width has room for: some 120 letters, of which a line's sample takes eight."""
    if sum(len(name) + 8 for name in names) < 75:
        return len(names) + len(_LOOKS)
    return 2 if max(map(len, names)) <= 50 else 1


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


def _off_scale(axes: Axes, tables: Mapping[str, pd.DataFrame], x: str, ends: Ends) -> None:
    """A strip above or below the frame for values far beyond: the number of the farthest, a mark for the others."""
    for above in (True, False):
        off = [
            (float(place), float(value), colour)
            for table, colour in zip(tables.values(), series_colours(len(tables)), strict=True)
            for name in _LOOKS
            for place, value in zip(table[x], table[name], strict=True)
            if (value > ends.high if above else 0 < value < ends.low)
        ]
        if not off:
            continue
        beyond = strip(axes, 1, above=above)
        for place, _, colour in off:
            beyond.plot([place], [0], "^" if above else "v", color=colour, markersize=3, clip_on=False)
        place, value, _ = (max if above else min)(off, key=lambda each: each[1])
        low, high = axes.get_xlim()
        is_left = (place - low) / (high - low) < 0.6
        beyond.annotate(f"{value:.2g}", (place, 0), xytext=(5 if is_left else -5, 0), textcoords="offset points",
                        ha="left" if is_left else "right", va="center_baseline", fontsize=6.5,
                        annotation_clip=False)  # fmt: skip
        if above:
            axes.set_title(axes.get_title(), pad=4 + 72 * broken_height(1))
        else:
            axes.tick_params(axis="x", pad=3 + 72 * broken_height(1))


def _norm_axis(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log", nonpositive="mask")
    if not 0 < low <= high:  # no norm but 0 was logged
        return
    axes.set_ylim(low / 1.25, high * 1.25)
    _few_numbers(axes.yaxis, low, high)


def _few_numbers(axis: Axis, low: float, high: float) -> None:
    """Powers of ten on a logarithmic axis, and 2 and 5 times these where there are few."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _depth_axis(axes: Axes, depth: int) -> None:
    axes.set_xlim(0.5, depth + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))


def _colour_ends(norms: pd.Series[float]) -> tuple[float, float]:
    seen = norms[norms > 0]
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (1.0, 1.0)
    return (low, high) if high > 1.01 * low else (low / 1.01, high * 1.01)


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
