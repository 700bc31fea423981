"""What each layer makes of the residual stream (CoMT, Figure 1). Shapes: T tokens, D width."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import torch.nn.functional as F

from comt_cli.analysis.text import tokens_of
from comt_cli.analysis.watch import watch
from comt_cli.exchange.loaded_text import LoadedText
from comt_cli.layers.residual.base import State, stream_of


def residual_stream(loaded: LoadedText, text: str | None = None) -> pd.DataFrame:
    """Compare every decoder layer's input x with its output y, on each token of `text` (None: `DEFAULT_TEXT`).

    Rows `layer` (from 1), `position` (from 0), `token`, and

        cosine           <x, y> / (|x| |y|)
        angle            arccos(cosine) / pi, the angular distance: 0 same direction, 0.5 orthogonal, 1 opposite
        update_cosine    <x, y - x> / (|x| |y - x|): whether what the layer changes points along its input
        norm_ratio       |y| / |x|, L2 norms

    Raises:
        UserError: see `tokens_of` and `watch`.
    """
    tokens = tokens_of(loaded, text)
    frames: dict[int, pd.DataFrame] = {}

    def compare(layer: int, before: State, after: State) -> None:
        x_TD, y_TD = stream_of(before)[0].double(), stream_of(after)[0].double()
        cosine_T = F.cosine_similarity(x_TD, y_TD, dim=-1).clamp(-1, 1)
        frames[layer] = pd.DataFrame(
            {
                "layer": layer,
                "position": np.arange(len(tokens.pieces)),
                "token": tokens.pieces,
                "cosine": cosine_T.numpy(),
                "angle": cosine_T.arccos().numpy() / np.pi,
                "update_cosine": F.cosine_similarity(x_TD, y_TD - x_TD, dim=-1).numpy(),
                "norm_ratio": (y_TD.norm(dim=-1) / x_TD.norm(dim=-1)).numpy(),
            }
        )

    observers = [(block, partial(compare, layer)) for layer, block in enumerate(loaded.model.blocks, start=1)]
    watch(loaded, (tokens.ids[None],), observers)
    return pd.concat([frames[layer] for layer in sorted(frames)], ignore_index=True)
