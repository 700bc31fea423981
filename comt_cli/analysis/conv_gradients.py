"""How large the gradient of every convolution was while a network learned (CoMT, Figure 3). Needs no torch.

The numbers are those that training logged, of whole batches, before clipping (`train.gradient_norms_every`).
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from comt_cli import words
from comt_cli.errors import UserError
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import tasks
from comt_cli.tasks.settings.images import ImageSettings

FIRST_EPOCHS = 5
"""What is shown of a longer training, unless another number is asked for."""

DRAWING = "conv-gradients"
"""What tasks call this drawing, whose runs have it."""

SET_IMAGES = {"glyphs10": 50_000, "glyphs100": 50_000, "cifar10": 50_000, "cifar100": 50_000, "imagenet": 1_281_167}
"""Images of the training split of each set, where a run uses all."""


def conv_gradients(runs: Mapping[str, RunDirectory], epochs: float = FIRST_EPOCHS) -> pd.DataFrame:
    """The L2 norm of the gradient of every convolution at every logged step of the first `epochs`, for runs by row.

    The convolutions are the network's own: the stem, those of the blocks and of their skip paths, not the filters of
    gates. A skip path's counts behind those of its block.

    Rows `row, convolution` (as in `blocks.3.conv2`), `depth` (its place counted from the input, from 1), `step`,
    `epoch` (the share of the training images that was seen by then), `norm`.

    Raises:
        UserError: a run is of a task without this drawing, or has logged no norms, or none within these epochs.
    """
    return pd.concat([_of_run(row, run, epochs) for row, run in runs.items()], ignore_index=True)


def _of_run(row: str, run: RunDirectory, epochs: float) -> pd.DataFrame:
    spec = run.spec()
    if DRAWING not in spec.task.drawings:
        those = words.listing(task.model_kind for task in tasks().values() if DRAWING in task.drawings)
        raise UserError(
            f"{run.shown} is a run of {spec.task.model_kind}; the gradients of convolutions are those of {those}"
        )
    lines = run.gradients()
    if not lines:
        raise UserError(f"{run.shown} has logged no gradient norms", _how_to_log(spec))
    per_epoch = _images(spec) / spec.settings.train.batch_size
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
    return pd.DataFrame(rows, columns=["row", "convolution", "depth", "step", "epoch", "norm"])


def _how_to_log(spec: RunSpec) -> str:
    every = spec.settings_as(ImageSettings).train.gradient_norms_every
    if every is None:
        return "Train it with --set train.gradient_norms_every=10, which logs them at every tenth step."
    return f"It is to log them every {every} steps: wait until it has, or train it."


def _images(spec: RunSpec) -> int:
    """How many images an epoch has."""
    data = spec.settings_as(ImageSettings).data
    return data.train_images or SET_IMAGES[data.images]


def _own(norms: Mapping[str, float]) -> dict[str, float]:
    """The network's own convolutions, in the order of the log, which is that of the network; by their places."""
    return {
        name.removesuffix(".weight").removesuffix(".convolution"): norm
        for name, norm in norms.items()
        if ".gate." not in name
    }
