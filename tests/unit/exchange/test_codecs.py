"""Tokenizers back to text: prompts, ends, and text that comes token by token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import processors

from comt_cli.data.tokenizer import ByteTokenizer, LibraryTokenizer, SentencePieceTokenizer, train_sentencepiece
from comt_cli.exchange.codecs import LibraryCodec, OwnCodec, tokenizer_files
from comt_cli.generation.completion import TextStream

PROSE = "the gate reads a token and scales what the projection adds to the residual stream"
TEXT = "naïve café, 日本語 🙂 def f(x):\n    return x"
BYTES = OwnCodec(ByteTokenizer())


def trained() -> SentencePieceTokenizer:
    words = PROSE.split()
    return train_sentencepiece([" ".join(words[i % 7 :] + words[: i % 5]) for i in range(40)], 290)


SENTENCEPIECE = OwnCodec(trained())


def byte_level(single: list[str] | None = None) -> Library:
    """Bytes with a beginning and an end; `single` is what the post-processor makes of a text."""
    tokenizer = Library.from_str(tokenizer_files(BYTES, None)[0]["tokenizer.json"][0].decode())
    if single:
        special = [("<pad>", 0), ("</s>", 1)]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    return tokenizer


def exported(codec: OwnCodec) -> LibraryCodec:
    """The same tokenizer as `comt export` writes it: bytes that stand behind each other are decoded together."""
    files, special = tokenizer_files(codec, None)
    content, _ = files["tokenizer.json"]
    return LibraryCodec(LibraryTokenizer(Library.from_str(content.decode()), None, [special["eos_token_id"]]))


CODECS = {
    "bytes": BYTES,
    "sentencepiece": SENTENCEPIECE,
    "exported bytes": exported(BYTES),
    "exported sentencepiece": exported(SENTENCEPIECE),
}
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))


@every_codec
def test_a_text_comes_back(codec):
    ids = codec.prompt(TEXT)
    assert codec.decode(ids) == TEXT
    # special tokens, and ids beyond the vocabulary that a padded model may draw, are no text
    assert codec.decode([*sorted(codec.end_ids), *ids, 10**6, *sorted(codec.end_ids)]) == TEXT
    assert codec.decode([]) == ""


@pytest.mark.parametrize(
    ("single", "begin", "ends", "of_a", "of_nothing"),
    [
        (None, None, [], [99], []),
        (None, None, [1], [99], [1]),
        (None, 0, [1], [99], [0]),
        (["<pad>", "$A"], None, [1], [0, 99], [0]),
        (["<pad>", "$A", "</s>"], None, [1], [0, 99], [0]),
        (["$A", "</s>"], None, [1], [99], [1]),
        (["</s>", "$A"], None, [1], [1, 99], [1]),
    ],
    ids=str,
)
def test_prompts_keep_what_stands_before_a_text(single, begin, ends, of_a, of_nothing):
    codec = LibraryCodec(LibraryTokenizer(byte_level(single), begin, ends))
    assert codec.prompt("a") == of_a
    assert codec.prompt("") == of_nothing
    assert codec.end_ids == frozenset(ends)


@every_codec
@given(data=st.data())
def test_any_tokens_come_out_once_and_in_order(codec, data):
    """Output of a bad model: halves of characters, special tokens, ids of no token."""
    ids = data.draw(st.lists(st.integers(0, 400), max_size=30))
    prompt = codec.prompt("the gate")
    stream = TextStream(codec, prompt)
    pieces = [stream.push(token) for token in ids]
    pieces.append(stream.finish())
    assert stream.text == "".join(pieces)
    assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])
    whole = codec.decode([*prompt, *ids])
    # Where bytes are decoded together, one that fits nowhere spoils those before it, which were given out already.
    assert "\ufffd" in whole or codec.decode(prompt) + stream.text == whole
    assert whole.endswith(stream.text.rpartition("\ufffd")[2])
