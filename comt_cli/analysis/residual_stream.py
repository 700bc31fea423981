"""What each layer makes of the residual stream (CoMT, Figure 1). Shapes: T tokens, D width."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

from comt_cli.analysis.text import tokens_of
from comt_cli.analysis.watch import Observer, watch
from comt_cli.exchange.loaded import LoadedText
from comt_cli.layers.residual.base import Carrying, State, read_behind, stream_of


def residual_stream(loaded: LoadedText, text: str | None = None) -> pd.DataFrame:
    """Compare every decoder layer's input x with its output y, on each token of `text` (None: `DEFAULT_TEXT`).

    Where more than a stream goes from block to block, x is what the connection reads of it (`ResidualConnection.read`),
    and y what that of the next block does, or the final norm.

    Rows `layer` (from 1), `position` (from 0), `token`, and

        cosine           <x, y> / (|x| |y|)
        angle            arccos(cosine) / pi, the angular distance: 0 same direction, 0.5 orthogonal, 1 opposite
        update_cosine    <x, y - x> / (|x| |y - x|): whether what the layer changes points along its input
        norm_ratio       |y| / |x|, L2 norms

    Raises:
        UserError: see `tokens_of` and `watch`.
    """
    tokens = tokens_of(loaded, text)
    model = loaded.model
    states: list[State] = []
    observers: list[tuple[nn.Module, Observer]] = [
        (block, lambda before, after: states.extend([after] if states else [before, after])) for block in model.blocks
    ]
    watch(loaded, (tokens.ids[None],), observers)
    # Connections are not handed what attention shares between blocks, so they do not read it either.
    states = [state.state if isinstance(state, Carrying) else state for state in states]
    with torch.no_grad():
        streams = [block.joints[0].connection.read(state) for block, state in zip(model.blocks, states, strict=False)]
        streams.append(stream_of(read_behind(states[-1], model.read_out)))
    frames = []
    for layer, (before, after) in enumerate(itertools.pairwise(streams), start=1):
        x_TD, y_TD = before[0].double(), after[0].double()
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
