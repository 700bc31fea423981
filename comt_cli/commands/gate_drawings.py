"""What `comt analyze-gates` draws of each kind of trained model, and with which of its options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from comt_cli.commands import figure_options
from comt_cli.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from comt_cli.analysis.gates import GateValues
    from comt_cli.analysis.text import Observation
    from comt_cli.exchange.loaded import Loaded, LoadedCaptioner, LoadedImageModel, LoadedText, LoadedTranslator
    from comt_cli.report.caption import Caption

Drawings = list[tuple[str, tuple["Figure", "pd.DataFrame"], "Caption"]]
"""The name of a figure's files, the figure with its numbers, and its caption."""

IMAGES = 4
"""Images that are shown where none are asked for."""


class Asked(NamedTuple):
    """The options of the verb: `images` are numbers of images; panels have one range of values where it is `shared`."""

    text: str | None
    site: str | None
    images: list[int] | None
    shared: bool


class Kind(NamedTuple):
    """How a kind of model is drawn: the options that are for it, the first of which says what it is observed on."""

    options: tuple[str, ...]
    draw: Callable[[Any, Asked], Drawings]


def kinds() -> dict[type[Loaded], Kind]:
    """Every kind of model whose gates are drawn."""
    from comt_cli.exchange.loaded import (
        LoadedCaptioner,
        LoadedClassifier,
        LoadedImageModel,
        LoadedMaskedModel,
        LoadedModel,
        LoadedTranslator,
    )

    return {
        LoadedModel: Kind(("--text", "--site"), _of_text),
        LoadedMaskedModel: Kind(("--text", "--site"), _of_text),
        LoadedClassifier: Kind(("--text", "--site"), _of_text),
        LoadedTranslator: Kind(("--text", "--site"), _of_translator),
        LoadedImageModel: Kind(("--images",), _of_image_classifier),
        LoadedCaptioner: Kind(("--images", "--text", "--site"), _of_captioner),
    }


def _of_text(loaded: LoadedText, asked: Asked) -> Drawings:
    from comt_cli.analysis.text import observed_text

    return _of_tokens(loaded, lambda: observed_text(loaded, asked.text), asked)


def _of_translator(loaded: LoadedTranslator, asked: Asked) -> Drawings:
    from comt_cli.analysis.sentence_pair import observed_pair

    return _of_tokens(loaded, lambda: observed_pair(loaded, asked.text), asked)


def _of_captioner(loaded: LoadedCaptioner, asked: Asked) -> Drawings:
    from comt_cli.analysis.captioned_image import observed_image

    number, *others = asked.images or [0]
    if others:
        raise UserError(
            f"--images: {loaded.name} is observed on one image at a time", f"Give a number with a comma: {number},"
        )
    return _of_tokens(loaded, lambda: observed_image(loaded, number, asked.text), asked)


def _of_tokens(loaded: Loaded, observe: Callable[[], Observation], asked: Asked) -> Drawings:
    from comt_cli.analysis.gates import has_gates, observed_gates
    from comt_cli.analysis.junction_shares import has_junction_shares, junction_shares
    from comt_cli.analysis.mixing import mixes, mixing
    from comt_cli.report import figures
    from comt_cli.report.figure_captions import caption

    if not has_gates(loaded) and not has_junction_shares(loaded) and not mixes(loaded):
        raise _without_gates(loaded)
    trained = figure_options.trained_words(loaded)
    on = observe()
    drawings: Drawings = []
    if has_gates(loaded):
        drawings += _of_gates(loaded, observed_gates(loaded, on), trained, asked)
    elif asked.site is not None:
        raise UserError(f"--site {asked.site}: {loaded.name} has no gates on projections or branches")
    if has_junction_shares(loaded):
        shares = figures.draw_junction_shares(junction_shares(loaded, on))
        said = caption("junction-shares", "Shares of the residual connections at every junction", trained, shares[1])
        drawings.append(("residual-shares", shares, said))
    if mixes(loaded) and len(weights := mixing(loaded, on)):  # some say so, and mix nothing at this depth
        mixtures = figures.draw_mixing(weights)
        said = caption("mixing", "What is mixed at every junction", trained, mixtures[1])
        drawings.append(("mixing", mixtures, said))
    if not drawings:
        raise _without_gates(loaded)
    return [(stem, drawn, replace(said, reading=(*on.said, *said.reading))) for stem, drawn, said in drawings]


def _of_gates(loaded: Loaded, values: GateValues, trained: str, asked: Asked) -> Drawings:
    from comt_cli.analysis import gates
    from comt_cli.report import figures
    from comt_cli.report.figure_captions import caption, summary_caption

    sites = values.sites("channel")
    if asked.site is not None and not sites:
        raise UserError(
            f"--site {asked.site}: the gates of {loaded.name} are scalars", "--site is for channel-wise gates."
        )
    summary = gates.summary_frame(values)
    drawings = [("gate-summary", figures.draw_gate_summary(summary), summary_caption(trained, summary))]
    for where, own in _apart(gates.scalar_frame(values), "stack", "text"):
        lines = figures.draw_gate_lines(own, shared=asked.shared)
        title = " ".join(["Scalar gates of every token across layers", *_of_stack(where)])
        said = caption("gate-values", title, trained, lines[1])
        drawings.append(("-".join(["gate-values-by-token", *where]), lines, said))
    if sites:
        chosen = asked.site or ("down_proj" if "down_proj" in sites else sites[-1])
        channels = gates.channel_frame(values, chosen, figures.MAX_CHANNELS)
        for where, own in _apart(channels, "stack", "part", "text"):
            place = " ".join([*where[:2], chosen])
            surfaces = figures.draw_gate_surfaces(own, place)
            said = caption("channel-gates", f"Channel-wise gates at {place} on every token", trained, surfaces[1])
            drawings.append(("-".join(["gate-values-by-channel", *where[:2], chosen]), surfaces, said))
    return drawings


def _apart(frame: pd.DataFrame, *keys: str) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """The rows of every figure, with what they are of: one that is of nothing else where the frame tells no stacks
    apart, none where there are no rows."""
    if "stack" in frame:
        for where, own in frame.groupby([*keys], sort=False):
            yield tuple(map(str, where)), own.reset_index(drop=True)
    elif len(frame):
        yield (), frame


def _of_stack(where: tuple[str, ...]) -> list[str]:
    """Words for a stack and the sequence that its gates read."""
    return [f"of the {where[0]}, on the tokens of the {where[1]}"] if where else []


def _of_image_classifier(loaded: LoadedImageModel, asked: Asked) -> Drawings:
    from comt_cli.analysis.image_gates import gate_maps, gate_sites, gate_summary, map_frame
    from comt_cli.analysis.residual_shares import has_shares, residual_shares
    from comt_cli.report import figures
    from comt_cli.report.figure_captions import caption, maps_caption, summary_caption

    trained = figure_options.trained_words(loaded)
    drawings: Drawings = []
    if gate_sites(loaded):
        maps = gate_maps(loaded, range(IMAGES) if asked.images is None else asked.images)
        drawn = figures.draw_gate_maps(map_frame(maps), list(maps.pixels), shared=asked.shared)
        drawings.append(("gate-maps", drawn, maps_caption(trained, shared=asked.shared)))
        summary = gate_summary(loaded)
        observed = f"block ({int(summary['examples'].max()):,} images)"
        drawings.append(
            ("gate-summary", figures.draw_gate_summary(summary, observed), summary_caption(trained, summary))
        )
    elif asked.images is not None and has_shares(loaded):
        raise UserError(
            f"--images: {loaded.name} has no gates that are maps over an image, only those of its residual connections",
            "Leave --images out: their means are over the validation images.",
        )
    if has_shares(loaded):
        shares = figures.draw_residual_shares(residual_shares(loaded))
        said = caption("residual-shares", "Shares of the residual connections in every block", trained, shares[1])
        drawings.append(("residual-shares", shares, said))
    if not drawings:
        raise _without_gates(loaded)
    return drawings


def _without_gates(loaded: Loaded) -> UserError:
    return UserError(f"{loaded.name} has no gates to analyse: it holds {loaded.description}")
