"""Values of gates, and the residual stream, of networks of tokens on a batch, as data frames.

Shapes: B rows of a batch, T tokens, N channels, M tokens that are no padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from comt_cli.analysis.observed import (
    Add,
    by_layer,
    compared,
    gate_factors,
    reads_source,
    recorded,
    residual_adds,
)
from comt_cli.data.tokenizer import PAD
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import Loaded
from comt_cli.library.hosts import stack_of
from comt_cli.models.base import Model
from comt_cli.models.transformer import EncoderDecoder, Transformer


def gate_values(model: nn.Module | Loaded, batch: Any, *, tokenizer: Any = None, channels: bool = True) -> pd.DataFrame:
    """Values of every gate of a network on every token of a batch, in one forward pass.

    Rows: `row` of the batch and `position` in it, from 0; `token`, its name, or its id where there is no tokenizer;
    `layer`, from 1; `site` (`q_proj`, `sdpa` ...); `kind`: `scalar`, `head`, `channel`, or `evaluator`, the e of an
    Evaluator-Adjuster Unit, which is no factor; `channel`, or the head, from 0, missing of a scalar; and `value`, a
    number without unit. Of a translator also `stack`, `part`, the branch, and `text`, the sequence that the gate reads.
    What a site gives is multiplied with its values of all kinds.

    A channel gate has as many values a token as its site has channels: in SmolLM2-135M with Transponder, seven sites
    and thirty layers, 156,000 a token. With `channels=False` a row is the mean over the channels or heads.

    Args:
        model: a network of comt, a wrapped model, or what `comt_cli.exchange.load` gives; it stays as it was.
        batch: token ids `[B, T]`, as a tensor, or as lists that may differ in length; a text, or a list of texts; or a
            mapping with `input_ids` and `attention_mask`, 0 at padding, which has no rows. A translator needs a mapping
            that has `decoder_input_ids` too, and perhaps `decoder_attention_mask`.
        tokenizer: makes ids of texts, and names of ids; comt's or transformers'.
        channels: whether every channel has a row.

    Raises:
        UserError: the model has no gates, or does not read tokens alone, or the batch is none of these.

    >>> from comt_cli.layers.initialise import initialise
    >>> from comt_cli.methods import method_from
    >>> from comt_cli.models.llama import Llama
    >>> from comt_cli.tasks.settings.language import ModelSettings
    >>> settings = ModelSettings(size="tiny", width=8, ffn_width=8, layers=2, heads=2)
    >>> model = Llama(settings, 20, method_from({"name": "comt", "sites": ["q_proj"]}).wiring())
    >>> initialise(model, seed=0)
    >>> gate_values(model, [[3, 4], [5]]).drop(columns="value")
       row  position  token  layer    site    kind  channel
    0    0         0      3      1  q_proj  scalar     <NA>
    1    0         1      4      1  q_proj  scalar     <NA>
    2    1         0      5      1  q_proj  scalar     <NA>
    3    0         0      3      2  q_proj  scalar     <NA>
    4    0         1      4      2  q_proj  scalar     <NA>
    5    1         0      5      2  q_proj  scalar     <NA>
    """
    on = _read(model, batch, tokenizer)
    frames = []
    for each in gate_factors(on.model, on.run):
        text = "source" if each.by in on.of_source else [*on.masks][-1]
        mask_BT, values = on.masks[text], each.values.float()
        values_MN = values.expand(*mask_BT.shape, values.shape[-1]).cpu()[mask_BT].numpy()
        if not channels:
            values_MN = values_MN.mean(-1, keepdims=True)
        M, N = values_MN.shape
        frame = on.tokens[text].loc[np.repeat(np.arange(M), N)]
        if len(on.masks) > 1:
            frame = frame.assign(stack=each.stack, part=each.part, text=text)
        channel = pd.array([pd.NA] * M if each.kind == "scalar" or not channels else [*range(N)] * M, dtype="Int64")
        frame = frame.assign(layer=each.layer + 1, site=each.site, kind=each.kind)
        frames.append(frame.assign(channel=channel, value=values_MN.ravel()))
    if not frames:
        raise UserError("the model has no gates", "comt_cli.wrap puts them into it.")
    return pd.concat(frames, ignore_index=True)


def residual_stream(
    model: nn.Module | Loaded, batch: Any, *, tokenizer: Any = None, by: Literal["layer", "add"] = "layer"
) -> pd.DataFrame:
    """The residual stream x before and y after every layer of a network, on every token of a batch.

    Rows: `row`, `position`, `token` and `layer` as of `gate_values`; and, as `comt plot-cosine` draws them,

        cosine           <x, y> / (|x| |y|)
        angle            arccos(cosine) / pi, the angular distance: 0 same direction, 0.5 orthogonal, 1 opposite
        update_cosine    <x, y - x> / (|x| |y - x|): whether the update points along its input
        norm_ratio       |y| / |x|, L2 norms

    By `add` instead of `layer` x and y are before and after every residual add, and `part` says of which branch
    (`attention`, `mlp`, `cross`). Of a translator `stack` and `text` stand before the layer. Where there are several
    streams, x is what the residual connection reads of them, and y what the next one does.

    Raises:
        UserError: as `gate_values`; or the residual adds of the model are not known.

    >>> from comt_cli.layers.initialise import initialise
    >>> from comt_cli.methods import method_from
    >>> from comt_cli.models.llama import Llama
    >>> from comt_cli.tasks.settings.language import ModelSettings
    >>> settings = ModelSettings(size="tiny", width=8, ffn_width=8, layers=1, heads=2)
    >>> model = Llama(settings, 20, method_from({"name": "rezero"}).wiring())
    >>> initialise(model, seed=0)
    >>> frame = residual_stream(model, [[3, 4]], by="add")  # ReZero's blocks start as the identity
    >>> frame[["position", "layer", "part", "cosine", "norm_ratio"]].round(3)
       position  layer       part  cosine  norm_ratio
    0         0      1  attention     1.0         1.0
    1         1      1  attention     1.0         1.0
    2         0      1        mlp     1.0         1.0
    3         1      1        mlp     1.0         1.0
    """
    on, frames = _read(model, batch, tokenizer), []
    for each in by_layer(residual_adds(on.model, on.run)) if by == "layer" else _adds(on.model, on.run):
        text = "source" if each.stack == "encoder" and len(on.masks) > 1 else [*on.masks][-1]
        mask_BT = on.masks[text].to(each.x.device)
        where: dict[str, Any] = {"stack": each.stack, "text": text} if len(on.masks) > 1 else {}
        where |= {"layer": each.layer + 1} | ({"part": each.part} if by == "add" else {})
        frames.append(on.tokens[text].assign(**where, **compared(each.x[mask_BT], each.y[mask_BT])))
    return pd.concat(frames, ignore_index=True)


def _adds(model: nn.Module, run: Callable[[], object]) -> list[Add]:
    """Every residual add, also of the blocks of another library, where they are known: between their two stands what
    the norm before the feed-forward network reads, or this itself."""
    stack = None if isinstance(model, Model) else stack_of(model)
    host, blocks = (None, ()) if stack is None else (stack.host, stack.blocks)
    names = () if host is None else host.sublayers if host.norm_is_behind else host.norms
    with recorded(middles := [block.get_submodule(names[1]) for block in blocks]) as kept:
        adds = residual_adds(model, run)
    if all(each.part for each in adds):
        return adds
    if not middles:
        raise UserError(f"the residual adds of {type(model).__name__} are not known, only its layers")
    pairs = zip(adds, (kept[each][0][0] for each in middles), strict=True)
    halves = ((whole._replace(part="attention", y=h), whole._replace(part="mlp", x=h)) for whole, h in pairs)
    return [add for both in halves for add in both]


class _Batch(NamedTuple):
    """A network and the pass of a batch through it. By the names of its sequences: their masks, bool [B, T], True where
    no padding is, and their M tokens, `row, position, token`. `of_source` are the modules that read the first of
    several."""

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
            mask_BT = mask_BT & _padded(given[keys[1]], None)[0].bool()
        if is_own:
            _check(ids_BT, mask_BT, network.vocabulary)
            ids_BT = ids_BT.masked_fill(~mask_BT, PAD)  # some networks know padding by it, and others cannot see it
        ids.append(ids_BT.to(next(network.parameters()).device))
        named |= {keys[0]: ids[-1], keys[1]: mask_BT.to(ids[-1])}
        on.masks[name], on.tokens[name] = mask_BT, _named(ids_BT, mask_BT, tokenizer)
    return on._replace(of_source=frozenset(reads_source(network))) if has_source else on


def _check(ids_BT: Tensor, mask_BT: Tensor, vocabulary: int) -> None:
    if (mask_BT[:, 1:] > mask_BT[:, :-1]).any():
        raise UserError("the batch has padding before tokens", "comt's own networks take it behind them alone.")
    wrong = ids_BT[mask_BT & ((ids_BT < 0) | (ids_BT >= vocabulary))]
    if len(wrong):
        raise UserError(f"the batch has the id {int(wrong[0])}; the model's are 0 to {vocabulary - 1}")


def _padded(given: Any, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Ids, or other whole numbers, int64 [B, T], 0 behind shorter rows, and where there are some, bool [B, T]."""
    texts = [given] if isinstance(given, str) else given
    if len(texts) and isinstance(texts[0], str):
        if tokenizer is None:
            raise UserError("a text needs a tokenizer", "Pass the one that the model comes with, or token ids.")
        encode = tokenizer.prompt if hasattr(tokenizer, "prompt") else tokenizer.encode  # that: without a text's end
        texts = [encode(text) for text in texts]
    try:
        rows = [torch.as_tensor(row, device="cpu") for row in texts]
        rows = [torch.stack(rows)] if rows[0].ndim == 0 else rows
        numbers_BT = pad_sequence(rows, batch_first=True)
        if numbers_BT.ndim != 2 or numbers_BT.is_floating_point() or not all(map(len, rows)):
            raise TypeError
    except (IndexError, RuntimeError, TypeError, ValueError):
        raise UserError("the batch is neither text nor token ids [B, T], one or more in each row") from None
    return numbers_BT.long(), pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True)


def _named(ids_BT: Tensor, mask_BT: Tensor, tokenizer: Any) -> pd.DataFrame:
    rows, positions = mask_BT.nonzero().T.tolist()
    names = ids_BT[mask_BT].tolist()
    if tokenizer is not None:
        name = tokenizer.pieces if hasattr(tokenizer, "pieces") else tokenizer.convert_ids_to_tokens
        names = name(names)
    return pd.DataFrame({"row": rows, "position": positions, "token": names})
