"""GGUF files written here by llama.cpp's own Python package, and read back."""

from __future__ import annotations

import io
import pydoc_data.topics
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
from gguf import GGMLQuantizationType as Type
from same_bits import Reason, assert_same_bits

from comt_cli.data.published import tokenizer_of
from comt_cli.data.tokenizer import tokenizer_from_json
from comt_cli.errors import UserError
from comt_cli.exchange.codecs import byte_alphabet
from comt_cli.exchange.huggingface import split
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel

TOKENS = torch.randint(262, (2, 17), generator=torch.Generator().manual_seed(3))
MERGES = ["Ġ k", "i n", "Ġk in", "Ġkin g"]
BYTE_LEVEL = ["<|end|>", *byte_alphabet().values(), "Ġk", "in", "Ġkin", "Ġking", "<|pad|>"]
VOCABULARY = len(BYTE_LEVEL)


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reordering that llama.cpp's converter does to query and key projections."""
    rows = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, rows, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write(path: Path, model, quantisation: Type = Type.F32, tokens: list[str] | None = None, **changes) -> Path:
    """A GGUF file of `model`; `changes` override metadata (None leaves a key out)."""
    shape, settings = model.shape, model.settings
    writer = gguf.GGUFWriter(path, changes.pop("architecture", "llama"))
    writer.add_block_count(shape.layers)
    writer.add_context_length(96)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.ffn_width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(settings.rope_theta)
    writer.add_layer_norm_rms_eps(settings.norm_eps)
    writer.add_tokenizer_model(changes.pop("tokenizer", "gpt2"))
    if pre := changes.pop("pre", "gpt-2"):
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens or BYTE_LEVEL)
    for key, value in changes.items():
        getattr(writer, f"add_{key}")(value)
    if tokens is None:
        writer.add_token_merges(MERGES)
        writer.add_token_types([3, *[1] * (VOCABULARY - 2), 3])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, shape.layers)
    for name, tensor in split(model).items():
        array = tensor.detach().float().numpy()
        heads = {"q_proj": shape.heads, "k_proj": shape.kv_heads}.get(name.split(".")[-2])
        array = array if heads is None else permute(array, heads)
        short = names.get_name(name, (".weight",))
        if array.ndim == 2:
            writer.add_tensor(short, gguf.quants.quantize(array, quantisation), raw_dtype=quantisation)
        else:
            writer.add_tensor(short, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS % model.vocabulary)


@pytest.mark.parametrize("shape", [{"kv_heads": 2}, {"tied_embeddings": True}], ids=str)
def test_a_float_file_computes_what_its_source_does(shape, make_llama, tmp_path) -> None:
    model = make_llama(VOCABULARY, **shape)
    loaded = load(write(tmp_path / "m.gguf", model), LoadedModel)
    # The very same numbers in the very same program: no tolerance. (rope_theta and eps are stored as fp32.)
    assert_same_bits(loaded.model.state_dict(), model.state_dict(), Reason.SAVED)
    torch.testing.assert_close(logits(loaded.model), logits(model), rtol=1e-5, atol=1e-5)
    assert loaded.model.settings.tied_embeddings == shape.get("tied_embeddings", False)
    assert (loaded.name, loaded.context_length) == ("m", 96)


def test_a_quantised_file_is_undone(make_llama, tmp_path) -> None:
    model, quantisation = make_llama(VOCABULARY), Type.Q4_1
    loaded = load(write(tmp_path / "m.gguf", model, quantisation), LoadedModel)
    # Rows are quantised on their own, so permuting rows and quantising may be exchanged.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                coarse = gguf.quants.dequantize(gguf.quants.quantize(parameter.numpy(), quantisation), quantisation)
                parameter.copy_(torch.from_numpy(coarse))
    torch.testing.assert_close(logits(loaded.model), logits(model), rtol=1e-5, atol=1e-5)


def test_a_byte_level_tokenizer_is_rebuilt(make_llama, tmp_path) -> None:
    model = make_llama(VOCABULARY)
    codec = load(write(tmp_path / "m.gguf", model), LoadedModel).text_codec()
    ids = codec.encode("a king\n")
    assert codec.pieces(ids) == ["a", "▁king", "\\n"]
    with_start = write(tmp_path / "b.gguf", model, add_bos_token=True, bos_token_id=0)
    assert load(with_start, LoadedModel).text_codec().pieces([0, *ids]) == ["<|end|>", "a", "▁king", "\\n"]
    assert load(with_start, LoadedModel).text_codec().encode("a king\n") == [0, *ids]
    assert codec.encode("a<|pad|>")[1] == VOCABULARY - 1
    ending = str(write(tmp_path / "e.gguf", model, add_bos_token=True, bos_token_id=0, eos_token_id=VOCABULARY - 1))
    cuts = tokenizer_of(ending)  # as a corpus is cut
    assert (cuts.encode("a king\n"), cuts.special.end, cuts.vocabulary_size) == ([0, *ids], VOCABULARY - 1, VOCABULARY)
    again = tokenizer_from_json(cuts.to_json())
    assert (again.encode("a king\n"), again.pieces(ids), again.decode(ids)) == (
        [0, *ids],
        codec.pieces(ids),
        "a king\n",
    )
    assert VOCABULARY - 1 not in cuts.encode("a<|pad|>")  # no text ends a document
    with pytest.raises(ValueError, match="its tokenizer is damaged"):
        tokenizer_from_json(cuts.to_json() | {"tokenizer": "{"})


def test_llamas_tokenizer_cuts_as_sentencepiece_does(make_llama, tmp_path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(list(pydoc_data.topics.topics.values())[:12]),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(processor.vocab_size())
    file = write(
        tmp_path / "m.gguf",
        make_llama(700),
        tokens=[processor.id_to_piece(i) for i in ids],
        tokenizer="llama",
        pre=None,
        token_scores=[processor.get_score(i) for i in ids],
        token_types=[2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 1 for i in ids],
        bos_token_id=1,
        unk_token_id=0,
    )
    codec = load(file, LoadedModel).text_codec()
    for text in ("Once a king was a statement.", "  indented (code) = [1, 2]", "naïve 日本"):
        assert codec.encode(text) == [1, *processor.encode(text)]
    assert codec.pieces(codec.encode("Once"))[:2] == ["<s>", processor.encode("Once", out_type=str)[0]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "gemma"}, "architecture 'gemma'"),
        ({"pre": "qwen2"}, "splitting rule 'qwen2'"),
        ({"tokenizer": "t5"}, "kind 't5'"),
        ({"tokenizer": "llama"}, "no score for every token"),
        ({"expert_count": 4}, "mixture of experts"),
        ({"key_length": 32}, r"attention\.key_length = 32"),
        ({"rope_dimension_count": 8}, r"rope\.dimension_count = 8"),
        ({"rope_scaling_type": gguf.RopeScalingType.YARN}, "rope_scaling = "),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(changes, words, make_llama, tmp_path) -> None:
    file = write(tmp_path / "m.gguf", make_llama(VOCABULARY), **changes)
    with pytest.raises(UserError, match=words):
        load(file, LoadedModel)


def test_damaged_and_foreign_files_give_an_error_for_people(make_llama, tmp_path) -> None:
    content = write(tmp_path / "m.gguf", make_llama(VOCABULARY)).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (4, 5, 20, 300, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(UserError, match="not a complete GGUF file"):
            load(cut, LoadedModel)
    cut.write_bytes(struct.pack("<4sIQQQ4sIIQ", b"GGUF", 3, 0, 1, 4, b"some", 9, 0, 2**60))  # an array without an end
    with pytest.raises(UserError, match="not a complete GGUF file: it was cut off"):
        load(cut, LoadedModel)
    cut.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(UserError, match="not a complete GGUF file"):
        load(cut, LoadedModel)
