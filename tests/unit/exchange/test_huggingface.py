"""Hugging Face folders: what is written there computes what the model does, and the other way round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from same_bits import Reason, assert_same_bits
from torch.nn.attention.flex_attention import create_block_mask
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.exchange.huggingface import read_huggingface
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.library.export import write_huggingface

transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(61, (2, 17), generator=torch.Generator().manual_seed(3))


def export(model, folder: Path) -> Path:
    write_huggingface(LoadedModel(model, "m", "a test", context_length=128), folder)
    return folder


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        output = model.eval()(TOKENS)
    return getattr(output, "logits", output)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    # fp32 in another order of additions: a few units in the last place of the largest logit, over two layers.
    assert ours.abs().max() > 1
    torch.testing.assert_close(ours, theirs, rtol=0, atol=64 * torch.finfo(torch.float32).eps * ours.abs().max().item())


@pytest.mark.parametrize(
    "shape", [{"kv_heads": 1, "rope_theta": 1e5, "norm_eps": 1e-5}, {"tied_embeddings": True}], ids=str
)
def test_transformers_computes_the_same_both_ways(shape, make_llama, tmp_path) -> None:
    model = make_llama(**shape)
    expected = logits(model)
    theirs = transformers.LlamaForCausalLM.from_pretrained(export(model, tmp_path / "out"))
    assert theirs.config.max_position_embeddings == 128
    close(expected, logits(theirs))
    model.to(torch.bfloat16)
    back = read_huggingface(export(model, tmp_path / "bf16")).model.state_dict()
    assert_same_bits(back, model.state_dict(), Reason.SAVED)
    torch.manual_seed(5)
    theirs = transformers.LlamaForCausalLM(theirs.config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(4)
    # Small files, so that the index and several parts are read too.
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="40KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    loaded = read_huggingface(tmp_path / "theirs")
    close(logits(loaded.model), logits(theirs))
    assert (loaded.context_length, loaded.model.settings.rope_theta) == (128, model.settings.rope_theta)


@pytest.mark.parametrize(
    ("method", "is_plain"),
    [("scaled-init", True), ("pre-ln", True), ("comt", False), ("post-ln", False), ("resformer", False)],
)
def test_what_llama_cannot_express_is_not_called_a_llama(method, is_plain, make_llama, tmp_path) -> None:
    config = json.loads((export(make_llama(method={"name": method}), tmp_path / "out") / "config.json").read_text())
    assert (config["model_type"], "auto_map" in config) == (("llama", False) if is_plain else ("comt", True))
    if not is_plain:
        with pytest.raises(UserError, match="of type 'comt'"):
            read_huggingface(tmp_path / "out")


@pytest.mark.parametrize("method", [{"name": "smear"}, {"name": "embedding-norm", "of": "smear"}], ids=str)
def test_a_network_that_needs_the_previous_token_is_not_exported(method, make_llama, tmp_path) -> None:
    with pytest.raises(UserError, match="smear cannot be exported: transformers' cache has no previous token"):
        export(make_llama(method=method), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mistral"}, "mistral"),
        ({"attention_bias": True}, "attention_bias = true"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling"),
        ({"head_dim": 32}, "head_dim = 32"),
        ({"hidden_size": "absent"}, "has no key hidden_size"),
        ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight is missing"),
        ({"num_hidden_layers": 10**9}, "layers: Input should be less than or equal to 1000"),
        ({"vocab_size": 2**62}, "vocab_size = 4611686018427387904 is not a number of tokens"),
        ({"vocab_size": 62}, r"embed_tokens.weight is \[61, 64\], not \[62, 64\]"),
    ],
)
def test_configurations_that_do_not_fit_are_refused_by_name(changes, words, make_llama, tmp_path) -> None:
    folder = export(make_llama(), tmp_path / "out")
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))
    with pytest.raises(UserError, match=words):
        load(folder, LoadedModel)


def test_pickles_damaged_files_and_paths_outside_are_refused(make_llama, tmp_path) -> None:
    folder = export(make_llama(), tmp_path / "out")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="not a complete safetensors file"):
        load(folder, LoadedModel)
    weights.unlink()
    with pytest.raises(UserError, match="has no weights"):
        load(folder, LoadedModel)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="as a pickle"):
        load(folder, LoadedModel)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "../secret.safetensors"}}))
    with pytest.raises(UserError, match="outside its folder"):
        load(folder, LoadedModel)
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "gone.safetensors"}}))
    with pytest.raises(UserError, match=r"has no gone\.safetensors"):
        load(folder, LoadedModel)


def test_the_card_says_what_the_run_was(save_run, tmp_path) -> None:
    checkpoint = save_run({"name": "transponder", "rank": 3})
    ending = {"state": "done", "perplexity": 12.345, "bits_per_byte": 1.25, "git_commit": "0123456789ab"}
    checkpoint.with_name("result.json").write_text(json.dumps(ending))
    invoke = CliRunner().invoke
    done = invoke(app, ["export", str(checkpoint), str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    card = (tmp_path / "out" / "README.md").read_text()
    said = (
        *("`comt/table3`, row `transponder`, column `tiny`, scale `smoke`", "seed 1", "| transponder (rank 3) |"),
        *("LLaMA tiny", "`python-docs`, content not known", "| validation perplexity | 12.35 |", "bits a byte"),
        *("0123456789ab", "trust_remote_code=True", "Transponder: contextual modulators", "Deviations: One A serves"),
    )
    assert [each for each in said if each not in card] == []
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == 1
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert tokenizer.decode(tokenizer("a castle").input_ids) == "a castle"
    again = invoke(app, ["export", str(checkpoint), str(tmp_path / "out")])
    assert "is not empty" in str(again.exception)
    (tmp_path / "out" / "config.json").unlink()  # as if it had been killed: the configuration is written last
    with pytest.raises(UserError, match="is not a model"):
        load(tmp_path / "out", LoadedModel)


def test_an_export_is_built_as_torchtitan_builds_models(make_llama, tmp_path) -> None:
    """Without storage, then with storage that is not initialised, then with the file's weights: nothing else may be
    needed. The names are those that its `transformers_modeling_backend` looks up, and a mask of its own kind reaches
    the attention function as it is."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    folder = export(make_llama(method={"name": "comt"}), tmp_path / "out")
    expected = logits(transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True))
    built = get_class_from_dynamic_module("modeling_comt.ComtForCausalLM", str(folder))
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    with torch.device("meta"):
        model = built(config)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(torch.nan)
    model.apply(model._init_weights)
    model.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"))
    body = model.model
    assert {"embed_tokens", "layers", "norm", "rotary_emb"} <= {name for name, _ in body.named_children()}
    seen = []

    def attention(module, query, key, value, attention_mask, scaling=None, **_):
        seen.append(attention_mask)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return mixed.transpose(1, 2), None

    transformers.AttentionInterface.register("like_torchtitan", attention)
    model.config._attn_implementation = "like_torchtitan"
    length = TOKENS.shape[1]
    mask = create_block_mask(lambda batch, head, query, key: query >= key, 1, None, length, length, device="cpu")
    places = torch.arange(length)[None]
    with torch.no_grad():
        rows = [body(row[None], attention_mask=mask, position_ids=places).last_hidden_state for row in TOKENS]
        close(expected, model.lm_head(torch.cat(rows)))
    assert len(seen) == 2 * len(body.layers)
    assert all(each is mask for each in seen)


def test_a_network_that_cannot_be_written_leaves_no_folder(make_llama, tmp_path) -> None:
    model = make_llama(method={"name": "highway"})
    model.blocks[1].mlp_connection.norm = Lambda(torch.tanh)
    with pytest.raises(UserError, match="function is a builtin_function_or_method, which config"):
        export(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Lambda(torch.nn.Module):
    """A norm that is a function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)
