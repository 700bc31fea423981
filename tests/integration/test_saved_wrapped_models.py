"""Wrapped models as folders: in the hands of others, damaged, and as runs. That each is restored, without comt and with
it, is in `test_without_comt`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import safetensors.torch
import tokenizers
import torch
from same_bits import Reason, assert_same_bits
from test_wrapped_models import FAMILIES, LAUREL_PA, SEVERAL, TOKENS, close, made, moved, out
from tiny_runs import write_language_model
from torch import nn
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import Loaded, LoadedModel
from comt_cli.library.restored import load
from comt_cli.library.saving import CODE
from comt_cli.library.values import gate_values
from comt_cli.library.wrap import unwrap, wrap

transformers = pytest.importorskip("transformers")

CASES = {
    **{f"{family} gates": (family, SEVERAL["gates"]) for family in FAMILIES},
    **{f"{family} sdpa": (family, "sdpa-gate") for family in ("LlamaForCausalLM", "Olmo2ForCausalLM", "GPT2Model")},
    **{f"GPT2LMHeadModel {method}": ("GPT2LMHeadModel", SEVERAL[method]) for method in ("sdpa", "history", "streams")},
    "Qwen3ForCausalLM streams": ("Qwen3ForCausalLM", {"name": "mhc", "n": 2}),
    "LlamaForCausalLM history": ("LlamaForCausalLM", LAUREL_PA),
    "LlamaForCausalLM path": ("LlamaForCausalLM", {"name": "transponder-path", "rank": 2}),
    "LlamaForCausalLM eau": ("LlamaForCausalLM", "eau"),
    "LlamaForCausalLM denseformer": ("LlamaForCausalLM", "denseformer"),
    "LlamaForCausalLM delta": ("LlamaForCausalLM", "delta-attention-residuals"),
}
TIED = "SmolLM3ForCausalLM gates"
DEEP = "LlamaForCausalLM denseformer"
"""Of twelve layers: config.json sorts keys as texts, 10 before 2."""


def a_model(name: str) -> Any:
    family, method = CASES[name]
    more = {"tie_word_embeddings": True} if name == TIED else {"num_hidden_layers": 12} if name == DEEP else {}
    return moved(wrap(made(family, **more), method, start="paper"))


# ---- in the hands of others


class Same(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"input_ids": TOKENS[0], "labels": TOKENS[0]}


def test_a_checkpoint_of_a_trainer_is_a_wrapped_model(tmp_path):
    model = a_model("LlamaForCausalLM gates")
    options = {"max_steps": 2, "save_steps": 1, "per_device_train_batch_size": 2, "learning_rate": 1e-2}
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(str(tmp_path), **options, **quiet)
    transformers.Trainer(model, arguments, train_dataset=Same()).train()
    later = load(tmp_path / "checkpoint-2", Loaded).model
    assert_same_bits(out(later), out(model.eval()), Reason.SAVED)
    whole = transformers.Trainer(a_model("LlamaForCausalLM gates"), arguments, train_dataset=Same())
    whole.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    close(out(whole.model.eval()), out(model), 1e-6)


def test_adapters_name_the_folder_of_the_wrapped_model(tmp_path):
    peft = pytest.importorskip("peft")
    made("LlamaForCausalLM").save_pretrained(tmp_path / "plain")
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "plain")
    moved(wrap(model, "comt", start="paper"))
    only = peft.LoraConfig(target_modules=["q_proj"], r=2)
    adapted = peft.get_peft_model(model, only)
    assert adapted.peft_config["default"].base_model_name_or_path == f"{tmp_path / 'plain'}, wrapped and not saved"
    model = adapted.unload()
    model.save_pretrained(tmp_path / "wrapped")
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], r=2))
    for name, parameter in adapted.named_parameters():
        if "gate." in name:
            parameter.requires_grad_(True)
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    expected = out(adapted.eval())
    adapted.save_pretrained(tmp_path / "adapter")
    written = safetensors.torch.load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert not any("gate." in name for name in written)  # they are the base's
    adapted.unload().save_pretrained(tmp_path / "wrapped")
    base = load(tmp_path / "wrapped", Loaded).model
    back = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert back.peft_config["default"].base_model_name_or_path == str(tmp_path / "wrapped")
    assert_same_bits(out(back), expected, Reason.SAVED)


def test_a_model_wrapped_by_a_mapping_is_saved_in_parts_too(tmp_path):
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    model = transformers.BertModel(transformers.BertConfig(num_attention_heads=4, **sizes)).eval()
    sites = {"up_proj": "encoder.layer.*.intermediate.dense", "down_proj": "encoder.layer.*.output.dense"}
    moved(wrap(model, "comt", sites=sites)).save_pretrained(tmp_path, max_shard_size="10KB")
    assert len([*tmp_path.glob("model-*.safetensors")]) > 2
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "comt_bert"
    assert_same_bits(out(load(tmp_path, Loaded).model), out(model), Reason.SAVED)


def test_unwrapped_models_are_saved_as_their_own(tmp_path):
    model = made("LlamaForCausalLM")
    name = model.name_or_path
    unwrap(wrap(model, "comt")).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
    assert not (tmp_path / CODE).exists()
    assert model.name_or_path == name


# ---- what is refused


def test_a_model_that_code_cannot_name_is_not_saved(tmp_path):
    class Custom(transformers.LlamaForCausalLM):
        pass

    model = wrap(Custom(made().config), "comt")
    with pytest.raises(UserError, match=r"Custom is not a class of transformers"):
        model.save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_sharded_model_is_not_saved_in_part(tmp_path):
    model = wrap(made(), "comt")
    whole = model.state_dict()
    model.lm_head.weight.device_mesh = None  # as parameters have it that are DTensors
    with pytest.raises(UserError, match=r"sharded(.|\n)*state_dict="):
        model.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path, state_dict=whole)
    assert_same_bits(out(load(tmp_path, Loaded).model), out(model), Reason.SAVED)


def changed(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


WRONG = {
    "model": ({"model": "LlamaForEverything"}, r"has no LlamaForEverything"),
    "other-model": ({"model": "MistralForCausalLM"}, r"has no MistralForCausalLM for the model type comt_llama"),
    "method": ({"wrapping": {"method": {"name": "no-such"}, "start": "paper"}}, r"config\.json"),
    "start": ({"wrapping": {"method": {"name": "comt"}, "start": "anyhow"}}, r"config\.json.*start"),
    "nothing": ({"wrapping": 3}, r"config\.json"),
    "another": ({"wrapping": {"method": {"name": "laurel-lr"}, "start": "paper"}}, r"gate\.A is unexpected"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_configuration_that_comt_did_not_write_is_an_error(name, tmp_path):
    entries, said = WRONG[name]
    a_model("LlamaForCausalLM gates").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changed(tmp_path, comt=config["comt"] | entries)
    with pytest.raises(UserError, match=said):
        load(tmp_path, Loaded)


def test_tensors_that_do_not_fit_are_named(tmp_path):
    a_model("LlamaForCausalLM gates").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    state = safetensors.torch.load_file(path)
    name = "model.layers.1.self_attn.q_proj.gate.A"
    for wrong, said in ((None, "is missing"), (torch.zeros(2, 3), r"is \[2, 3\], not \[2, 32\]")):
        other = {key: value for key, value in state.items() if key != name} | ({} if wrong is None else {name: wrong})
        safetensors.torch.save_file(other, path, {"format": "pt"})
        with pytest.raises(UserError, match=rf"{name} {said}"):
            load(tmp_path, Loaded)
    safetensors.torch.save_file(state, path, {"format": "pt"})
    with pytest.raises(UserError, match="is a wrapped model of transformers, not a language model"):
        load(tmp_path, LoadedModel)
    (tmp_path / CODE).unlink()
    with pytest.raises(OSError, match=CODE):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)


# ---- as runs


def write_tokenizer(folder: Path) -> None:
    words = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", "once", "a", "king", "left", "."])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.mark.usefixtures("quick_figures")
@pytest.mark.parametrize("family", ["LlamaForCausalLM", pytest.param("GPT2LMHeadModel", marks=pytest.mark.slow)])
def test_gates_and_stream_of_a_folder_are_drawn(family, tmp_path):
    model = a_model(f"{family} gates")
    model.save_pretrained(tmp_path / "folder")
    write_tokenizer(tmp_path / "folder")
    text = "once a king left a king ."
    call("analyze-gates", tmp_path / "folder", "--text", text, "--out", tmp_path / "gates")
    call("plot-cosine", tmp_path / "folder", "--text", text, "--out", tmp_path / "stream")
    summary = pd.read_csv(tmp_path / "gates" / "gate-summary.csv")
    assert {*summary["site"]} == {*model.comt_wrapping.sites}
    values = gate_values(model, [[3, 4, 5, 6, 4, 5, 7]])
    found = summary[(summary["site"] == "q_proj") & (summary["layer"] == 2)].set_index("kind")["mean"]
    ours = values[(values["site"] == "q_proj") & (values["layer"] == 2)].groupby("kind")["value"].mean()
    for kind, mean in found.items():
        assert abs(mean - ours[kind]) < 1e-4
    (stream,) = (tmp_path / "stream").glob("*.csv")
    assert {*pd.read_csv(stream)["layer"]} == {1, 2, 3}
    with pytest.raises(UserError, match="is a wrapped model of transformers, not a language model"):
        call("generate", tmp_path / "folder", "--prompt", text)


@pytest.mark.usefixtures("quick_figures")
def test_an_exported_run_is_used_as_the_run(tmp_path):
    run = write_language_model(tmp_path / "run", {"name": "transponder", "rank": 2})
    call("export", run, tmp_path / "out")
    for source in (run, tmp_path / "out"):
        call("analyze-gates", source, "--out", tmp_path / f"{source.name}-figures")
    for path in (tmp_path / "run-figures").glob("*.csv"):
        ours, theirs = (pd.read_csv(each) for each in (path, tmp_path / "out-figures" / path.name))
        tokens = [name for name in ours if name == "token"]  # an exported tokenizer shows spaces in its own way
        pd.testing.assert_frame_equal(ours.drop(columns=tokens), theirs.drop(columns=tokens))
    said = [call("generate", source, "--prompt", "a", "--max-new-tokens", 4) for source in (run, tmp_path / "out")]
    assert said[0] == said[1]
    changed(tmp_path / "out", comt=None)
    with pytest.raises(UserError, match="the key comt"):
        call("generate", tmp_path / "out", "--prompt", "a")
