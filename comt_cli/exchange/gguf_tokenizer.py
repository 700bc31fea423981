"""The tokenizer inside a GGUF file, rebuilt with the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from comt_cli.errors import UserError
from comt_cli.exchange.codecs import LibraryCodec

_KEY = "tokenizer.ggml."
_SPECIAL = (3, 4)
"""llama.cpp's token types for control and user-defined tokens: matched before the text is cut."""
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def gguf_codec(metadata: Mapping[str, Any], origin: str) -> LibraryCodec:
    """The tokenizer that `metadata` describes, adding a beginning-of-text token where llama.cpp would. Raises
    `UserError` where it is of a kind, or cuts text by a rule, that comt does not know: no guess is made."""
    kind = metadata.get(f"{_KEY}model")
    tokens = metadata.get(f"{_KEY}tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise UserError(f"{origin} holds no token list, so it cannot be fed text")
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level(metadata, tokens, origin)
    elif kind == "llama":
        tokenizer, adds_bos = _sentencepiece(metadata, tokens, origin), True
    else:
        raise UserError(f"{origin}: comt cannot read a tokenizer of kind {kind!r}", "It reads gpt2 and llama.")
    types = metadata.get(f"{_KEY}token_type") or []
    special = [token for token, type_ in zip(tokens, types, strict=False) if type_ in _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    bos, *ends = (_token_id(metadata, name, tokens) for name in ("bos", "eos", "eot"))
    if metadata.get(f"{_KEY}add_bos_token", adds_bos) and bos is not None:
        # A list is how the library takes a piece whose text has the template's own signs ($, :) in it.
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"], special_tokens=[(tokens[bos], bos)]
        )
    return LibraryCodec(tokenizer, bos, [end for end in ends if end is not None])


def _token_id(metadata: Mapping[str, Any], name: str, tokens: Sequence[str]) -> int | None:
    """The id that the file gives a special token; None where it gives none, or one that is no token."""
    value = metadata.get(f"{_KEY}{name}_token_id")
    return value if isinstance(value, int) and 0 <= value < len(tokens) else None


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], origin: str) -> tuple[Tokenizer, bool]:
    """GPT-2's kind: byte-level BPE with merges; and whether text begins with a special token by default."""
    rule = metadata.get(f"{_KEY}pre")
    whole = rule in ("llama-bpe", "llama3", "llama-v3")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not whole)
    if rule == "gpt-2":
        cut: pre_tokenizers.PreTokenizer = byte_level
    elif rule == "smollm":
        cut = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    elif whole:
        cut = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_LLAMA3), "isolated"), byte_level])
    else:
        raise UserError(
            f"{origin}: comt does not know the cutting rule {rule!r}", "It knows gpt-2, smollm and llama-bpe."
        )
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get(f"{_KEY}merges") or []]
    if not all(len(merge) == 2 for merge in merges):
        raise UserError(f"{origin}: its list of merges is damaged")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    try:
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=whole))
    except Exception as error:  # the library raises bare `Exception`, for instance where a merge makes no token
        raise UserError(f"{origin}: its tokenizer is damaged: {error}") from None
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, whole


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str], origin: str) -> Tokenizer:
    """LLaMA's kind: SentencePiece BPE. It merges the pair whose joint piece scores highest, so the merges follow."""
    scores = metadata.get(f"{_KEY}scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise UserError(f"{origin}: its tokenizer has no score for every token")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [
        (-scores[vocabulary[piece]], vocabulary[piece[:cut]], vocabulary[piece[cut:]], (piece[:cut], piece[cut:]))
        for piece in vocabulary
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    unknown = metadata.get(f"{_KEY}unknown_token_id", 0)
    try:
        model = models.BPE(
            vocabulary,
            [pair for *_, pair in sorted(merges)],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    except Exception as error:  # as above; IndexError and TypeError where the unknown token's id is not one
        raise UserError(f"{origin}: its tokenizer is damaged: {error}") from None
    tokenizer = Tokenizer(model)
    prefix = [normalizers.Prepend("▁")] if metadata.get(f"{_KEY}add_space_prefix", True) else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer
