"""A program that has transformers, and nothing of comt: loads every folder below the one that it is given, of exported
language models, of other exported networks and of wrapped models, and writes what it found beside them. Run with
`python -I -S`."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import sys
from pathlib import Path

sys.modules["torchvision"] = None  # what is beside torch in a development environment need not fit it
sys.path.append(sys.argv[2])  # of the packages: their .pth files, which may have comt, are not read

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModel, AutoModelForCausalLM  # noqa: E402

PADDING = 0


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return ((found.float() - expected.float()).abs().max() / expected.float().abs().max()).item()


def refused_without_trust(auto, folder: Path) -> str:
    try:
        return type(auto.from_pretrained(folder)).__name__
    except ValueError as error:
        return str(error)


def generated(model, tokens: torch.Tensor, use_cache: bool) -> list[list[int]]:
    ends = {"pad_token_id": PADDING, "eos_token_id": None, "do_sample": False}
    return model.generate(tokens, max_new_tokens=4, use_cache=use_cache, **ends).tolist()


@torch.no_grad()
def padded_off(model, tokens: torch.Tensor) -> float:
    """Of a batch of a text and a shorter one, padded on either side, against each alone."""
    whole, short = tokens[0], tokens[1, :5]
    filling = torch.full((len(whole) - len(short),), PADDING)
    alone, worst = [model(each[None]).logits[0] for each in (whole, short)], 0.0
    for parts in ((filling, short), (short, filling)):
        mask = torch.stack(
            [torch.ones_like(whole), torch.cat([torch.full_like(each, each is short) for each in parts])]
        )
        logits = model(torch.stack([whole, torch.cat(parts)]), attention_mask=mask).logits
        worst = max([worst, *(off(row[seen.bool()], one) for row, seen, one in zip(logits, mask, alone, strict=True))])
    return worst


def trains(model, tokens: torch.Tensor) -> bool:
    """Whether every learned number gets a gradient, with blocks computed again as without."""
    gradients = []
    for again in (False, True):
        model.zero_grad()
        model.train()
        (model.gradient_checkpointing_enable if again else model.gradient_checkpointing_disable)()
        model(tokens, labels=tokens).loss.backward()
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.requires_grad})
    first, second = gradients
    return all(each is not None and off(second[name], each) < 1e-4 for name, each in first.items() if each.any())


@torch.no_grad()
def backend_off(model, tokens: torch.Tensor, expected: torch.Tensor) -> float:
    """As vLLM runs it: attention of its own, which is handed down what the model was called with, and masks itself;
    linear layers and RMSNorms of its own; no cache."""
    seen = []

    def attention(module, query, key, value, attention_mask, scaling=None, attention_instances=None, **_):
        assert attention_mask is None
        assert module.is_causal
        seen.append(attention_instances[module.layer_idx])
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return mixed.transpose(1, 2), None

    class Replaced(torch.nn.Module):
        def __init__(self, module) -> None:
            super().__init__()
            self.compute = module

        def forward(self, x):
            return self.compute(x)

    transformers.AttentionInterface.register("like_vllm", attention)
    for path, module in [*model.model.named_modules()]:
        if type(module) in (torch.nn.Linear, torch.nn.RMSNorm):
            parent, _, name = path.rpartition(".")
            setattr(model.model.get_submodule(parent), name, Replaced(module))
    model.config._attn_implementation = "like_vllm"
    positions, layers = torch.arange(tokens.shape[1])[None], range(model.config.num_hidden_layers)
    called = {"use_cache": False, "return_dict": False, "attention_instances": [*layers], "position_ids": positions}
    rows = [model.model(input_ids=row[None], **called)[0] for row in tokens]
    assert seen == [*layers] * len(tokens)
    return off(model.lm_head(torch.cat(rows)), expected)


def exported(folder: Path, expected: dict, again: Path) -> dict:
    """A language model of comt's."""
    tokens = expected["tokens"]
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    with torch.no_grad():
        output = model(tokens, output_hidden_states=True)
        found = {
            "class": type(model).__name__,
            "off": off(output.logits, expected["logits"]),
            "as_cached": generated(model, tokens[:, :5], True) == generated(model, tokens[:, :5], False),
            "padded_off": padded_off(model, tokens),
            "streams": len(output.hidden_states),
            "learned": sum(each.numel() for each in model.parameters() if each.requires_grad),
        }
        if "bf16" in expected:
            model.set_attn_implementation("eager")
            found["eager_off"] = off(model(tokens).logits, expected["logits"])
            model.set_attn_implementation("sdpa")
            narrow = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.bfloat16)
            found["bf16_off"] = off(narrow.eval()(tokens).logits, expected["bf16"])
            model.save_pretrained(again)
            back = AutoModelForCausalLM.from_pretrained(again, trust_remote_code=True).eval()
            found["back_off"] = off(back(tokens).logits, output.logits)
            body = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
            found["body_off"] = off(body(tokens).last_hidden_state, output.hidden_states[-1])
            found["without_trust"] = refused_without_trust(AutoModelForCausalLM, folder)
    if "bf16" in expected:
        found["trains"] = trains(model, tokens)
        found["backend_off"] = backend_off(model.eval(), tokens, expected["logits"])
    return found


@torch.no_grad()
def network(folder: Path, expected: dict, again: Path) -> dict:
    """A BERT or a ResNet: a class of transformers', or a module of the folder."""
    config = json.loads((folder / "config.json").read_text())
    (architecture,) = config["architectures"]
    if architecture == "ResNet":
        sys.modules.pop("resnet_comt", None)
        sys.path.insert(0, str(folder))
        module = importlib.import_module("resnet_comt")
        sys.path.remove(str(folder))
        return {"off": off(module.load()(*expected["inputs"]), expected["outputs"])}
    tokens, *segments = expected["inputs"]
    model, said = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert not said["missing_keys"] | said["unexpected_keys"], said
    mask = tokens != config["pad_token_id"]
    segments = {"token_type_ids": segments[0]} if segments else {}
    found = model.eval()(tokens, attention_mask=mask, **segments).logits
    return {"off": off(found, expected["outputs"])}


def wrapped(folder: Path, expected: dict, again: Path) -> dict:
    """A model of transformers that comt wrapped."""
    tokens, auto = expected["tokens"], getattr(transformers, expected["auto"])
    model, info = auto.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    output = model.eval()(tokens)[0].detach()
    found = {
        "class": type(model).__name__,
        "off": off(output, expected["output"]),
        "odd": [*info["missing_keys"], *info["unexpected_keys"], *map(str, info["mismatched_keys"])],
        "without_trust": refused_without_trust(auto, folder),
        "bases": [base.__name__ for base in type(model).__mro__],
    }
    if "generated" in expected:
        made = {use: generated(model, tokens[:, :4], use) for use in (True, False)}
        found["generates"] = made[True] == made[False] == expected["generated"]
    model.save_pretrained(again)
    back = auto.from_pretrained(again, trust_remote_code=True).eval()
    found["back_off"] = off(back(tokens)[0], output)
    found["copies_off"] = [
        off(other(tokens)[0], output) for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)))
    ]
    narrow = auto.from_pretrained(folder, trust_remote_code=True, dtype=torch.bfloat16).eval()
    found["narrow_off"] = off(narrow(tokens)[0], output)
    model.train()(tokens)[0].square().mean().backward()
    found["without_gradient"] = [name for name, each in model.named_parameters() if each.grad is None]
    return found


LOOKS = {"exported": exported, "network": network, "wrapped": wrapped}


def main(root: Path) -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        import comt_cli.layers  # noqa: F401

        raise SystemExit("comt can be imported: this would prove nothing")
    except ImportError:
        pass
    every = torch.load(root / "expected.pt")
    found = {
        name: LOOKS[name.partition("/")[0]](root / name, expected, root / "again" / name)
        for name, expected in every.items()
    }
    (root / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
