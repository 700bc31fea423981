"""BERT in Hugging Face folders: transformers computes the same logits, and cuts texts alike."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path

import pytest
import torch
from initialised import initialised, shaken

from comt_cli.data.tokenizer import train_sentencepiece
from comt_cli.errors import UserError
from comt_cli.exchange.codecs import LibraryCodec, OwnCodec
from comt_cli.exchange.huggingface import read_huggingface, write_huggingface
from comt_cli.exchange.loaded import LoadedClassifier, LoadedMaskedModel
from comt_cli.methods import method_from
from comt_cli.models.bert import Bert
from comt_cli.tasks.settings.bert import BertSettings

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


def test_transformers_computes_the_same_from_an_export(library, tmp_path) -> None:
    model = make()
    theirs = library.BertForMaskedLM.from_pretrained(export(model, tmp_path / "out"))
    assert theirs.config.layer_norm_eps == 1e-10
    with torch.no_grad():
        mine, other = model(TOKENS), theirs.eval()(TOKENS, attention_mask=(TOKENS != 0).long()).logits
    kept = TOKENS != 0
    # fp32 in another order of additions: some units in the last place of the largest logit, over two layers.
    tolerance = 128 * torch.finfo(torch.float32).eps * mine.abs().max().item()
    torch.testing.assert_close(mine[kept], other[kept], rtol=0, atol=tolerance)


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
        read_huggingface(tmp_path / "out")


def test_the_tokenizer_comes_along_with_what_surrounds_a_text(library, tmp_path) -> None:
    extras = ("begin", "mask", "separator")
    tokenizer = train_sentencepiece(list(pydoc_data.topics.topics.values())[:20], 400, extras)
    folder = export(make(), tmp_path / "out", codec := OwnCodec(tokenizer, begins=True))
    theirs = library.AutoTokenizer.from_pretrained(folder)
    text = "The value\nis  returned."
    assert theirs(text)["input_ids"] == codec.encode(text)
    assert codec.encode(text)[0] == theirs.cls_token_id == tokenizer.special.begin
    assert theirs.mask_token_id == tokenizer.special.mask
    read = LibraryCodec(theirs.backend_tokenizer)
    assert read.encode(text) == codec.encode(text)
    assert read.prompt(text) == codec.prompt(text) == codec.encode(text)[:-1]
