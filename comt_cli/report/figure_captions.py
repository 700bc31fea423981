"""Captions of figures of trained networks: how to read each, and its main numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import numpy as np
import pandas as pd

from comt_cli.report.caption import Caption
from comt_cli.report.figures.block_gradients import findings as block_findings
from comt_cli.report.figures.gate_summary import has_saturated
from comt_cli.report.figures.lines import BROKEN, SHARED, site_names
from comt_cli.report.figures.mixing import DISPERSION, LINEAR, READ_OUT, SIAMESE
from comt_cli.report.figures.residual_stream import PAPERS_MEAN

_LINES = "Above a thin line a token and their median, below the map of token and layer."


def caption(
    draw: str,
    title: str,
    trained: str,
    frame: pd.DataFrame,
    baseline: str = "",
    as_in_paper: Collection[str] = (),
) -> Caption:
    """Of what was drawn from `frame`, as the drawing returned it; `baseline` is the row that others stand beside.

    What the paper says of its own figure is repeated beside the rows `as_in_paper` alone (`RecipeFigure`): it is said
    of no other network.
    """
    return Caption(title, trained, tuple(_READING[draw](frame)), tuple(_FINDINGS[draw](frame, baseline, as_in_paper)))


def summary_caption(trained: str, frame: pd.DataFrame) -> Caption:
    """Of the gates' mean, spread and saturation."""
    shares = frame["saturation"].dropna()
    said = ["The saturated share is that of values within 5 % of either end of a gate's range."] if len(shares) else []
    if len(shares) and not has_saturated(frame):
        said.append(f"It is at most {100 * float(shares.max()):.2g} % everywhere, and not drawn.")
    reading = ["A measure has one scale of colours for scalar and channel-wise factors."]
    if (frame["kind"] == "evaluator").any():
        reading.append(
            "An Evaluator-Adjuster Unit makes x + a e of x: shown is e, the evaluator; it is no factor of x."
        )
    return Caption("Mean, spread and saturation of the gates", trained, tuple(reading), tuple(said))


def maps_caption(trained: str, *, shared: bool) -> Caption:
    """Of the maps of gates beside images."""
    reading = "All maps have one scale of colours." if shared else "The maps of a column share their colours."
    return Caption("Gates of an image classifier over the pixels of validation images", trained, (reading,))


def _of_stream(frame: pd.DataFrame, _: str, as_in_paper: Collection[str]) -> list[str]:
    cosine, ratio = frame["cosine"], frame["norm_ratio"]
    late = frame[frame["layer"] > 1]
    behind = f" ({late['cosine'].mean():.2f} behind the first layer)" if len(late) else ""
    beside = f"; CoMT's paper says of LLaMA2-7B that it is generally around {PAPERS_MEAN:g}" if as_in_paper else ""
    return [
        f"Mean over tokens and layers of the cosine similarity: {cosine.mean():.2f}{behind}{beside}. Median of the "
        f"norm ratio: {ratio.median():.2f}."
    ]


def _of_values(frame: pd.DataFrame, *_: object) -> list[str]:
    value = frame["value"]
    said = [f"Values from {value.min():.2g} to {value.max():.2g}, mean {value.mean():.2f}."]
    keys = [key for key in ("site", "layer", "channel") if key in frame]
    branches = [key for key in ("stack", "part") if key in frame]
    across = frame.groupby([*branches, *keys])["value"].std(ddof=0).mean()
    said.append(f"Standard deviation over the tokens, averaged over {_all_of(keys)}: {across:.2g}.")
    return said


def _all_of(keys: list[str]) -> str:
    names = {"site": "sites", "layer": "layers", "channel": "channels"}
    return " and ".join(part for part in (", ".join(names[key] for key in keys[:-1]), names[keys[-1]]) if part)


def _of_convolutions(frame: pd.DataFrame, *_: object) -> list[str]:
    return [
        f"{row}: median over convolutions {own['median'].median():.2g}; the greatest norm of a step is that of "
        f"{own['convolution'].iloc[int(own['greatest'].argmax())]}, {own['greatest'].max():.2g}."
        for row, own in frame.groupby("row", sort=False)
        if own["greatest"].notna().any()
    ]


def _of_shares(frame: pd.DataFrame, *_: object) -> list[str]:
    blocks = frame["block"].nunique()
    return [f"Over {blocks} residual blocks: {_ranges(frame)}."]


def _of_junctions(frame: pd.DataFrame, *_: object) -> list[str]:
    return [
        f"{str(stack).capitalize()}, {own['tokens'].iloc[0]} tokens, means at its "
        f"{len(own[['layer', 'part']].drop_duplicates())} junctions: {_ranges(own)}."
        for stack, own in _by(frame, "stack")
    ]


def _ranges(frame: pd.DataFrame) -> str:
    """The least and the greatest mean of each share."""
    return ", ".join(
        f"{share} {own['mean'].min():.3g} to {own['mean'].max():.3g}" for share, own in _by(frame, "share")
    )


def _by(frame: pd.DataFrame, key: str) -> list[tuple[str, pd.DataFrame]]:
    return [(str(name), own) for name, own in frame.groupby(key, sort=False)]


def _read_stream(frame: pd.DataFrame) -> list[str]:
    titles = "(a) cosine similarity and (b) ratio of the norms of each layer's output and input."
    return [titles, _LINES, *_broken(frame, "its least and greatest value")]


def _read_values(frame: pd.DataFrame) -> list[str]:
    together = "All panels have one axis and one scale of colours."
    apart = "Every panel has an axis and a scale of colours of its own."
    several = [together if frame.attrs[SHARED] else apart] if site_names(frame).nunique() > 1 else []
    return [_LINES, *several, *_broken(frame, "the farthest value")]


def _broken(frame: pd.DataFrame, phrase: str) -> list[str]:
    return [f"What is far from everything else stands on a broken axis, with {phrase}."] if frame.attrs[BROKEN] else []


def _read_channels(_: pd.DataFrame) -> list[str]:
    return [
        "Above surfaces, below maps of token and channel, of the layers that are named over them; one scale of colours."
    ]


def _read_convolutions(_: pd.DataFrame) -> list[str]:
    return [
        "L2 norms of the gradient before clipping, on logarithmic scales: (a) median and greatest of the logged steps "
        "for each convolution, (b) median and greatest of the convolutions at each step, and a map for each run."
    ]


def _read_shares(frame: pd.DataFrame) -> list[str]:
    return ["Means over validation images.", *_several_shares(frame)]


def _read_junctions(frame: pd.DataFrame) -> list[str]:
    over = "the tokens, and over the channels where each has a share of its own"
    return [f"Means over {over}, with the 10th and the 90th percentile.", *_several_shares(frame)]


def _read_mixing(frame: pd.DataFrame) -> list[str]:
    stream = frame[frame["weight"] == "stream"]
    notes = ["Shares in the stream are those behind the branch."] if (stream["part"] == "mlp").any() else []
    if (frame["part"] == READ_OUT).any():
        notes.append("The read-out is what the final norm reads behind the last block.")
    of_weights = {
        "heads": "Heads that keys and values come from count from the first block's first head on.",
        SIAMESE: "A branch reads s = N_post(x) + N_pre(y), the read-out N_x(x) + N_y(y): of the normed stream x and of "
        "the free one, y. The share of a part a of s is <a, s> / <s, s>, so that the two add up to 1; norms make both "
        "equally large but for what they learn, which alone moves the shares from one half.",
        DISPERSION: "Dispersion, on an axis of its own, is |H - mean| / |H| of the streams that a junction is handed"
        f"{', behind the norms through which they are read' if (frame['weight'] == SIAMESE).any() else ''}.",
    }
    notes += [note for weight, note in of_weights.items() if (frame["weight"] == weight).any()]
    line = "A line is a junction, from the first at the top"
    of_maps = frame[~frame["weight"].isin([SIAMESE, DISPERSION])]["mean"].abs()
    if not len(of_maps):
        return [f"{line}; means over the tokens.", *notes]
    above = ", logarithmic above 1" if of_maps.max() > LINEAR else ""
    return [
        f"{line}, and a column a source (streams and outputs count from 0, the embedding being output 0), or target ← "
        f"source; means over the tokens, in one scale of colours{above}, white being 0 and grey no such source.",
        *notes,
    ]


def _of_mixing(frame: pd.DataFrame, *_: object) -> list[str]:
    """Of mixing matrices how far they are from the identity; of streams how far apart; of attention how evenly."""
    said = []
    mix = frame[frame["weight"] == "mix"]
    if len(mix):
        off = mix[mix["target"] != mix["source"]]["mean"].abs()
        said.append(f"Off the diagonal, mixing matrices have {off.mean():.2g} on average and {off.max():.2g} at most.")
    read = frame[(frame["weight"] == SIAMESE) & (frame["source"] == 0)]["mean"]
    if len(read):
        said.append(f"The normed stream x makes {read.min():.2f} to {read.max():.2f} of what is read.")
    apart = frame[frame["weight"] == DISPERSION]["mean"]
    if len(apart):
        said.append(f"Streams are {apart.min():.2g} to {apart.max():.2g} of their size from their mean.")
    heads = frame[frame["weight"] == "heads"]
    if len(heads):
        # A block's own heads are the last sources of its lines.
        first_own = heads.groupby("layer")["source"].transform("max") - heads["target"].max()
        earlier = heads[heads["source"] < first_own]["mean"].abs()
        said.append(
            f"Heads of earlier blocks have weights of {earlier.mean():.2g} on average, {earlier.max():.2g} at most."
        )
    values = frame[frame["weight"] == "first-own"].groupby("source")["mean"].mean()
    if len(values):
        said.append(
            f"On average the first block's values have a weight of {values[0]:.2g}, and the own {values[1]:.2g}."
        )
    attention = frame[frame["weight"] == "attention"]
    if len(attention):
        each = attention.groupby(["stack", "layer", "part"], sort=False)["mean"]
        entropy = each.apply(lambda own: float(-(own * np.log(own.clip(lower=1e-30))).sum()))
        even = each.size().map(math.log)
        said.append(f"Entropy of the mean attention over depth: {(entropy / even).mean():.2f} of that of equal shares.")
    return said


def _several_shares(frame: pd.DataFrame) -> list[str]:
    return ["All axes span as much, each about its own middle."] if frame["share"].nunique() > 1 else []


def _read_blocks(_: pd.DataFrame) -> list[str]:
    return [
        "Means over images, on a logarithmic scale; the band is twice the standard error over these images, not over "
        "trainings."
    ]


_READING: dict[str, Callable[[pd.DataFrame], list[str]]] = {
    "residual-stream": _read_stream,
    "gate-values": _read_values,
    "channel-gates": _read_channels,
    "conv-gradients": _read_convolutions,
    "residual-shares": _read_shares,
    "junction-shares": _read_junctions,
    "mixing": _read_mixing,
    "block-gradients": _read_blocks,
}
_FINDINGS: dict[str, Callable[[pd.DataFrame, str, Collection[str]], list[str]]] = {
    "residual-stream": _of_stream,
    "gate-values": _of_values,
    "channel-gates": _of_values,
    "conv-gradients": _of_convolutions,
    "residual-shares": _of_shares,
    "junction-shares": _of_junctions,
    "mixing": _of_mixing,
    "block-gradients": block_findings,
}
