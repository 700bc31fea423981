"""Gate values and the residual stream of token networks on a batch, as data frames.

Shapes: B rows of a batch, T tokens, N channels, M tokens without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from comt_cli.analysis.observed import compared, layer_streams
from comt_cli.data.tokenizer import PAD
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import Loaded
from comt_cli.layers.gates import gates_of
from comt_cli.models.base import Model
from comt_cli.models.recorded import gate_factors, reads_source
from comt_cli.models.transformer import EncoderDecoder, Transformer


def gate_values(model: nn.Module | Loaded, batch: Any, *, tokenizer: Any = None, channels: bool = True) -> pd.DataFrame:
    """Values of every gate on every token of a batch, from one forward pass.

    The columns are `row` and `position` in the batch, from 0; `token`, its text, or its id without a tokenizer;
    `layer`, from 1; `site` (`q_proj`, `sdpa` ...); `kind`: `scalar`, `head`, `channel`, or `evaluator` (the e of an
    Evaluator-Adjuster Unit, which is not a factor); `channel`, the channel or head from 0, missing for a scalar; and
    `value`, without a unit. Translators also have `stack`, `part` (the branch) and `text` (the sequence that the gate
    reads). The output of a site is multiplied by its values of all kinds.

    A channel gate has one value per token and channel. SmolLM2-135M with Transponder (seven sites, thirty layers) has
    156,000 values per token. `channels=False` returns the mean over channels or heads instead.

    Args:
        model: A network of comt, a wrapped model, or the result of `comt_cli.exchange.load`. It is not changed.
        batch: Token ids `[B, T]` as a tensor, or lists of ids of any length; a text or a list of texts; or a mapping
            with `input_ids` and `attention_mask` (0 at padding, which gets no rows). A translator needs a mapping with
            `decoder_input_ids`, and optionally `decoder_attention_mask`.
        tokenizer: Converts texts to ids and ids to texts; comt's or transformers'.
        channels: One row per channel or head, instead of their mean.

    Returns:
        One row per gate, token and channel.

    Raises:
        UserError: The model has no gates, does not read tokens alone, or the batch has another form.

    Examples:
        >>> import transformers
        >>> from comt_cli.library.wrap import wrap
        >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
        >>> model = transformers.LlamaModel(transformers.LlamaConfig(vocab_size=9, **sizes))
        >>> gate_values(wrap(model, "comt", sites=["q_proj"]), [[3, 4], [5]])
           row  position  token  layer    site    kind  channel  value
        0    0         0      3      1  q_proj  scalar     <NA>    1.0
        1    0         1      4      1  q_proj  scalar     <NA>    1.0
        2    1         0      5      1  q_proj  scalar     <NA>    1.0
    """
    on, frames = _read(model, batch, tokenizer), []
    if not gates_of(on.model):
        raise UserError("the model has no gates", "comt_cli.wrap adds them.")
    for by, site, kind, values, _ in gate_factors(on.model, on.run):
        text = "source" if by in on.of_source else [*on.masks][-1]
        values_MN = values.float().expand(*on.masks[text].shape, values.shape[-1]).cpu()[on.masks[text]].numpy()
        if not channels:
            values_MN = values_MN.mean(-1, keepdims=True)
        M, N = values_MN.shape
        frame = on.tokens[text].loc[np.repeat(np.arange(M), N)]
        if len(on.masks) > 1:
            frame = frame.assign(stack=site.stack, part=site.part, text=text)
        channel = pd.array([pd.NA] * M if kind == "scalar" or not channels else [*range(N)] * M, dtype="Int64")
        frame = frame.assign(layer=site.layer + 1, site=site.name, kind=kind)
        frames.append(frame.assign(channel=channel, value=values_MN.ravel()))
    return pd.concat(frames, ignore_index=True)


def residual_stream(model: nn.Module | Loaded, batch: Any, *, tokenizer: Any = None) -> pd.DataFrame:
    """Residual stream x before and y after every layer, on every token of a batch.

    The columns are `row`, `position`, `token` and `layer` as in `gate_values`, and the quantities of `comt
    plot-cosine`:

        cosine           <x, y> / (|x| |y|)
        angle            arccos(cosine) / pi: 0 same direction, 0.5 orthogonal, 1 opposite
        update_cosine    <x, y - x> / (|x| |y - x|): direction of the update relative to x
        norm_ratio       |y| / |x|, L2 norms

    Translators also have `stack` and `text`. With several streams, x is the stream that the residual connection reads,
    and y the one that the next connection reads.

    Args:
        model: As in `gate_values`.
        batch: As in `gate_values`.
        tokenizer: As in `gate_values`.

    Returns:
        One row per token and layer.

    Raises:
        UserError: As in `gate_values`, or the model has no list of blocks.

    Examples:
        >>> import transformers
        >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 2}
        >>> model = transformers.LlamaModel(transformers.LlamaConfig(vocab_size=9, **sizes))
        >>> residual_stream(model, [[3, 4], [5]])[["row", "position", "token", "layer"]].tail(3)
           row  position  token  layer
        3    0         0      3      2
        4    0         1      4      2
        5    1         0      5      2
    """
    on, frames = _read(model, batch, tokenizer), []
    for stack, layer, *streams in layer_streams(on.model, on.run):
        text = "source" if stack == "encoder" and len(on.masks) > 1 else [*on.masks][-1]
        where = {"stack": stack, "text": text} if len(on.masks) > 1 else {}
        x_MD, y_MD = (stream_BTD[on.masks[text].to(stream_BTD.device)] for stream_BTD in streams)
        frames.append(on.tokens[text].assign(**where, layer=layer, **compared(x_MD, y_MD)))
    return pd.concat(frames, ignore_index=True)


class _Batch(NamedTuple):
    """Masks, bool [B, T], False at padding, and tokens, `row, position, token`, by the name of the sequence.
    `of_source`: the modules that read the first of several sequences."""

    model: nn.Module
    run: Callable[[], object]
    masks: dict[str, Tensor]
    tokens: dict[str, pd.DataFrame]
    of_source: frozenset[nn.Module]


def _read(model: nn.Module | Loaded, batch: Any, tokenizer: Any) -> _Batch:
    network: Any = model
    if isinstance(model, Loaded):
        network = model.model
        tokenizer = tokenizer or getattr(model, "codec", None) or getattr(model, "tokenizer", None)
    network = getattr(network, "_orig_mod", network)  # of torch.compile
    is_own, has_source = isinstance(network, Model), isinstance(network, EncoderDecoder)
    if is_own and (network.stream != "tokens" or (has_source and not isinstance(network, Transformer))):
        raise UserError("the model reads images, not tokens alone", "comt analyze-gates draws the gates of its run.")
    given = batch if isinstance(batch, Mapping) else {"input_ids": batch}
    prefixes = {"source": "", "target": "decoder_"} if has_source else {"text": ""}
    on = _Batch(network, lambda: network(*ids) if is_own else network(**{**given, **named}), {}, {}, frozenset())
    ids, named = list[Tensor](), dict[str, Tensor]()
    for name, prefix in prefixes.items():
        keys = f"{prefix}input_ids", f"{prefix}attention_mask"
        if keys[0] not in given:
            raise UserError(f"the batch has no {keys[0]}", f"The model reads {' and '.join(prefixes)}.")
        ids_BT, mask_BT = _padded(given[keys[0]], tokenizer)
        if given.get(keys[1]) is not None:
            given_BT = _padded(given[keys[1]], None)[0].bool()
            if given_BT.shape != mask_BT.shape:
                raise UserError(f"{keys[1]} is {[*given_BT.shape]}, and {keys[0]} is {[*mask_BT.shape]}")
            mask_BT = mask_BT & given_BT
        if is_own:
            if (mask_BT[:, 1:] > mask_BT[:, :-1]).any():
                raise UserError("the batch has padding before tokens", "comt's networks take padding after tokens.")
            if len(wrong := ids_BT[mask_BT & ((ids_BT < 0) | (ids_BT >= network.vocabulary))]):
                raise UserError(f"the batch has the id {wrong[0]}; valid ids are 0 to {network.vocabulary - 1}")
            ids_BT = ids_BT.masked_fill(~mask_BT, PAD)  # some networks identify padding by it
        ids.append(ids_BT.to(next(network.parameters()).device))
        named |= {keys[0]: ids[-1], keys[1]: mask_BT.to(ids[-1])}
        on.masks[name], on.tokens[name] = mask_BT, _named(ids_BT, mask_BT, tokenizer)
    return on._replace(of_source=frozenset(reads_source(network))) if has_source else on


def _padded(given: Any, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Ids or other integers, int64 [B, T], padded with 0, and their mask, bool [B, T]."""
    try:
        texts = [given] if isinstance(given, str) else [*given]
        if any(isinstance(text, str) for text in texts):
            if tokenizer is None:
                raise UserError("a text needs a tokenizer", "Pass the model's tokenizer, or token ids.")
            encode = tokenizer.prompt if hasattr(tokenizer, "prompt") else tokenizer.encode  # without a text's end
            texts = [encode(text) for text in texts]
        rows = [torch.as_tensor(row, device="cpu") for row in texts]
        rows = [torch.stack(rows)] if rows[0].ndim == 0 else rows
        numbers_BT = pad_sequence(rows, batch_first=True)
        if numbers_BT.ndim != 2 or numbers_BT.is_floating_point() or not all(map(len, rows)):
            raise TypeError
    except (IndexError, RuntimeError, TypeError, ValueError):
        raise UserError("the batch must be text, or token ids [B, T] with at least one in each row") from None
    return numbers_BT.long(), pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True)


def _named(ids_BT: Tensor, mask_BT: Tensor, tokenizer: Any) -> pd.DataFrame:
    rows, positions = mask_BT.nonzero().T.tolist()
    names = ids_BT[mask_BT].tolist()
    if tokenizer is not None:
        name = tokenizer.pieces if hasattr(tokenizer, "pieces") else tokenizer.convert_ids_to_tokens
        names = name(names)
    return pd.DataFrame({"row": rows, "position": positions, "token": names})
