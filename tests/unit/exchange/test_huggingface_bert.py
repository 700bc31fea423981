"""BERT in Hugging Face folders: equal logits both ways, and what cannot be expressed or read."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path

import pytest
import safetensors.torch
import torch
from initialised import initialised, shaken
from same_bits import Reason, assert_same_bits

from comt_cli.data.tokenizer import train_sentencepiece
from comt_cli.errors import UserError
from comt_cli.exchange.codecs import OwnCodec
from comt_cli.exchange.huggingface import read_huggingface, write_huggingface
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedClassifier, LoadedMaskedModel
from comt_cli.methods import method_from
from comt_cli.models.bert import Bert
from comt_cli.tasks.settings.masked_lm import BertSettings

TOKENS = torch.randint(1, 61, (3, 17), generator=torch.Generator().manual_seed(3))
TOKENS[1, 12:] = 0
SETTINGS = BertSettings(size="tiny", width=64, ffn_width=96, heads=4, positions=32, norm_eps=1e-10)


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("transformers")


def make(method: dict | None = None) -> Bert:
    wiring = method_from(method or {"name": "post-ln"}).wiring()
    return shaken(initialised(SETTINGS, wiring, 1, vocabulary=61)).eval()


def export(model: Bert, folder: Path, codec: OwnCodec | None = None) -> Path:
    write_huggingface(LoadedMaskedModel(model, "m", "a test", codec, 128), folder)
    return folder


def close(ours: Bert, theirs) -> None:
    with torch.no_grad():
        mine, other = ours(TOKENS), theirs.eval()(TOKENS, attention_mask=(TOKENS != 0).long()).logits
    kept = TOKENS != 0
    # fp32 in another order of additions: some units in the last place of the largest logit, over two layers.
    tolerance = 128 * torch.finfo(torch.float32).eps * mine.abs().max().item()
    torch.testing.assert_close(mine[kept], other[kept], rtol=0, atol=tolerance)


def test_transformers_computes_the_same_from_an_export_and_back(library, tmp_path) -> None:
    model = make()
    theirs = library.BertForMaskedLM.from_pretrained(export(model, tmp_path / "out"))
    assert theirs.config.layer_norm_eps == 1e-10
    close(model, theirs)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="40KB")
    back = load(tmp_path / "theirs", LoadedMaskedModel)
    assert back.model.settings == SETTINGS.model_copy(update={"size": "base", "layers": 2})
    assert back.context_length == 32
    assert_same_bits(back.model.state_dict(), model.state_dict(), Reason.SAVED)


@pytest.mark.parametrize("classes", [1, 3])
def test_transformers_judges_the_same(library, classes, tmp_path) -> None:
    """Of a classifier, and of one that gives a number."""
    wiring = method_from({"name": "post-ln"}).wiring()
    model = shaken(initialised(SETTINGS, wiring, 1, vocabulary=61, classes=classes)).eval()
    write_huggingface(LoadedClassifier(model, "m", "a test", None, 32), tmp_path / "out")
    theirs = library.BertForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert theirs.config.num_labels == classes
    segments = torch.zeros_like(TOKENS)
    segments[:, 8:] = 1
    with torch.no_grad():
        mine = model(TOKENS, segments)
        other = theirs(TOKENS, attention_mask=(TOKENS != 0).long(), token_type_ids=segments).logits
    torch.testing.assert_close(mine, other, rtol=0, atol=128 * torch.finfo(torch.float32).eps * mine.abs().max().item())
    with pytest.raises(UserError, match="BertForSequenceClassification"):
        load(tmp_path / "out", LoadedMaskedModel)


def test_the_tokenizer_comes_along_with_what_surrounds_a_text(library, tmp_path) -> None:
    extras = ("begin", "mask", "separator")
    tokenizer = train_sentencepiece(list(pydoc_data.topics.topics.values())[:20], 400, extras)
    folder = export(make(), tmp_path / "out", codec := OwnCodec(tokenizer, begins=True))
    theirs = library.AutoTokenizer.from_pretrained(folder)
    text = "The value\nis  returned."
    assert theirs(text)["input_ids"] == codec.encode(text)
    assert codec.encode(text)[0] == theirs.cls_token_id == tokenizer.special.begin
    assert theirs.mask_token_id == tokenizer.special.mask
    read = read_huggingface(folder).text_codec()
    assert read.encode(text) == codec.encode(text)
    assert read.prompt(text) == codec.prompt(text) == codec.encode(text)[:-1]


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_decoder_of_its_own_is_refused(tmp_path, part) -> None:
    folder = export(make(), tmp_path / "out")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    same = {"weight": "bert.embeddings.word_embeddings.weight", "bias": "cls.predictions.bias"}[part]
    decoder = {f"cls.predictions.decoder.{part}": tensors[same].clone()}
    for ours, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        tensors = {name.replace(ours, old): tensor for name, tensor in tensors.items()}
    tensors["bert.pooler.dense.weight"] = torch.ones(3)  # as a checkpoint of pre-training has
    safetensors.torch.save_file(tensors | decoder, folder / "model.safetensors", {"format": "pt"})
    read_huggingface(folder)
    decoder[f"cls.predictions.decoder.{part}"] += 1e-3
    safetensors.torch.save_file(tensors | decoder, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=rf"cls\.predictions\.decoder\.{part} is not {same}"):
        read_huggingface(folder)
