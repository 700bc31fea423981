"""Cosine similarity and norm ratio of every decoder layer's input and output, per token (CoMT, Figure 1).

Shapes: T tokens, D width.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

from comt_cli.analysis.model_figure import ModelFigure, Subject
from comt_cli.analysis.observed import Observer, tokens_of, watch
from comt_cli.layers.residual.base import State, final_stream
from comt_cli.report.figures import lines
from comt_cli.report.figures.lines import robust_ends
from comt_cli.report.figures.style import page_figure, style

_MARKED = {"cosine": {0.2: "0.2: CoMT\nsays of\nLLaMA2-7B"}, "norm_ratio": {1.0: "unchanged"}}
"""CoMT's paper, of LLaMA2-7B: the mean cosine similarity over tokens and layers is generally around 0.2."""
_LABELS = {
    "cosine": ("(a) direction kept by each layer", "cosine(input, output)"),
    "norm_ratio": ("(b) growth of the norm in each layer", "norm of output / input"),
}


class ResidualStream(ModelFigure):
    """Column (a) the cosine similarity, column (b) the norm ratio on a logarithmic scale: a thin line a token with
    their median, and under it the map of token x layer. Outliers stand beyond the frame, and have the colour of the
    scale's end."""

    name: ClassVar = "residual-stream"
    title: ClassVar = "The residual stream from layer to layer"

    def frame(self, of: Subject) -> pd.DataFrame:
        """Compare every decoder layer's input x with its output y, on each token of the text.

        Where more than a stream goes from block to block, x is what the connection reads of it
        (`ResidualConnection.read`), and y what that of the next block does, or the final norm.

        Rows `layer` (from 1), `position` (from 0), `token`, and

            cosine           <x, y> / (|x| |y|)
            angle            arccos(cosine) / pi, the angular distance: 0 same direction, 0.5 orthogonal, 1 opposite
            update_cosine    <x, y - x> / (|x| |y - x|): whether the layer's update points along its input
            norm_ratio       |y| / |x|, L2 norms

        Raises:
            UserError: see `tokens_of` and `watch`.
        """
        loaded, states = of.model, list[State]()
        tokens, model = tokens_of(loaded, of.text), loaded.model
        # The state before the first block, and behind each.
        observers: list[tuple[nn.Module, Observer]] = [
            (block, lambda before, after: states.extend([after] if states else [before, after]))
            for block in model.blocks
        ]
        watch(loaded, tokens.inputs, observers)
        with torch.no_grad():
            pairs = zip(model.blocks, states, strict=False)
            streams = [block.branches[0].connection.read(state) for block, state in pairs]
            streams.append(final_stream(states[-1], model.read_out, nn.Identity()))
        frames = []
        for layer, (x_1TD, y_1TD) in enumerate(itertools.pairwise(streams), start=1):
            x_TD, y_TD = x_1TD[0].double(), y_1TD[0].double()
            cosine_T = F.cosine_similarity(x_TD, y_TD, dim=-1).clamp(-1, 1)
            frame = {
                "layer": layer,
                "position": np.arange(len(tokens.pieces)),
                "token": tokens.pieces,
                "cosine": cosine_T.numpy(),
                "angle": cosine_T.arccos().numpy() / np.pi,
                "update_cosine": F.cosine_similarity(x_TD, y_TD - x_TD, dim=-1).numpy(),
                "norm_ratio": (y_TD.norm(dim=-1) / x_TD.norm(dim=-1)).numpy(),
            }
            frames.append(pd.DataFrame(frame))
        return pd.concat(frames, ignore_index=True)

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        return lines.drawn_tokens(frame)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        drawn = self.table(frame)
        return [
            "(a) cosine similarity and (b) ratio of the norms of each layer's output and input.",
            f"{lines.READING} Values far from all others stand beyond the frame.",
            f"Mean cosine similarity {drawn['cosine'].mean():.2f}, median ratio {drawn['norm_ratio'].median():.2f}.",
        ]

    def draw(self, frame: pd.DataFrame) -> Figure:
        drawn, tokens = self.table(frame), frame["position"].nunique()
        layers, shown = int(drawn["layer"].max()), drawn["position"].nunique()
        heights, beyond = (1.45, max(0.6, lines.ROW * shown)), 0.0
        with style():
            figure = page_figure(1.35 + sum(heights))
            panels = figure.subplots(2, 2, gridspec_kw={"height_ratios": heights})
            for (value, (title, label)), (above, below) in zip(_LABELS.items(), panels.T, strict=True):
                log = value == "norm_ratio"
                ends = robust_ends(drawn[value].to_numpy(), log=log)
                lines.token_lines(above, drawn, value)
                lines.value_axis(above, ends, log=log, least=0.05)
                lines.over_layers(above, layers)
                above.set_title(title)
                beyond = max(beyond, lines.off_scale(above, drawn, value, ends))
                above.set_ylabel(f"{label} (log scale)" if log else label)
                lines.references(above, _MARKED[value], named=True)
                image = lines.token_map(below, drawn, value, ends, log=log, named=value == "cosine")
                below.set_xlabel("layer")
                extend = lines.extension(drawn[value], ends)
                bar = figure.colorbar(image, ax=below, pad=0.02, aspect=30, extend=extend, extendfrac=0.04, label=label)
                if log:
                    lines.log_ticks(bar.ax, ends.high / ends.low)
            panels[1][0].set_ylabel(f"token{lines.shown_tokens(shown, tokens)}")
            panels[0][0].legend(handles=[panels[0][0].get_lines()[shown]], loc="best")
            figure.set_figheight(figure.get_figheight() + beyond)
        return figure
