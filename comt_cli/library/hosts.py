"""Models that can be wrapped without a mapping: the positions of their sites, sublayers and norms.

These are only names. transformers is imported by whoever made the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from comt_cli.errors import UserError


@dataclass(frozen=True)
class Where:
    """Name of the module that carries a site's gate, and of the one whose input the gate `reads`, if it is another. The
    gate multiplies the `part`-th of `parts` equal parts of the module's output, or for `sdpa` its input."""

    module: str
    reads: str | None = None
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Host:
    """Class of blocks with two sublayers, attention and feed-forward network, each with a norm before it or, with
    `norm_is_behind`, after it. Names are relative to the block. `arguments` of its forward follow the stream."""

    sites: Mapping[str, Where]
    sublayers: tuple[str, str]
    norms: tuple[str, str]
    arguments: tuple[str, ...] = ()
    norm_is_behind: bool = False


def _like_llama(*norms: str, behind: bool = False) -> Host:
    sites = {site: Where(f"self_attn.{site}") for site in ("q_proj", "k_proj", "v_proj", "o_proj")}
    sites |= {site: Where(f"mlp.{site}") for site in ("gate_proj", "up_proj", "down_proj")}
    sites["sdpa"] = Where("self_attn.o_proj", "self_attn.q_proj")
    sublayers = ("self_attn", "mlp")
    for site, module, norm in zip(("attention", "mlp"), sublayers, norms, strict=True):
        sites[site] = Where(norm, module) if behind else Where(module)  # a norm after the gate would undo it
    arguments = ("attention_mask", "position_ids", "past_key_values", "use_cache", "position_embeddings")
    return Host(sites, sublayers, (norms[0], norms[1]), arguments, behind)


_LLAMA = _like_llama("input_layernorm", "post_attention_layernorm")
_OLMO2 = _like_llama("post_attention_layernorm", "post_feedforward_layernorm", behind=True)
_GPT2 = Host(
    {
        **{site: Where("attn.c_attn", part=i, parts=3) for i, site in enumerate(("q_proj", "k_proj", "v_proj"))},
        **{"o_proj": Where("attn.c_proj"), "up_proj": Where("mlp.c_fc"), "down_proj": Where("mlp.c_proj")},
        **{"sdpa": Where("attn.c_proj", "attn.c_attn"), "attention": Where("attn"), "mlp": Where("mlp")},
    },
    ("attn", "mlp"),
    ("ln_1", "ln_2"),
    ("past_key_values", "attention_mask", "encoder_hidden_states", "encoder_attention_mask", "use_cache"),
)
_OWN = Host(
    {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj", "sdpa"), Where("attention.qkv")),
        **{"o_proj": Where("attention.output"), "down_proj": Where("mlp.down")},
        **dict.fromkeys(("gate_proj", "up_proj"), Where("mlp.gate_up")),
        **dict.fromkeys(("attention", "mlp"), Where("")),
    },
    ("attention", "mlp"),
    ("attention_connection.norm", "mlp_connection.norm"),
)
HOSTS = {
    "transformers.models.llama.modeling_llama.LlamaDecoderLayer": _LLAMA,
    "transformers.models.mistral.modeling_mistral.MistralDecoderLayer": _LLAMA,
    "transformers.models.qwen2.modeling_qwen2.Qwen2DecoderLayer": _LLAMA,
    "transformers.models.qwen3.modeling_qwen3.Qwen3DecoderLayer": _LLAMA,
    "transformers.models.smollm3.modeling_smollm3.SmolLM3DecoderLayer": _LLAMA,
    "transformers.models.olmo2.modeling_olmo2.Olmo2DecoderLayer": _OLMO2,
    "transformers.models.gpt2.modeling_gpt2.GPT2Block": _GPT2,
    "comt_cli.models.llama.Block": _OWN,
}
"""Known blocks, by class."""
KNOWN = "transformers' LLaMA, Mistral, Qwen2, Qwen3, SmolLM3, OLMo2 and GPT-2, and comt's own LLaMA"


def path_of(kind: type) -> str:
    """Name of a class with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True)
class Stack:
    """Blocks of a model in order, all of one host. `sites` has names of the whole model, with `*` for the layer."""

    host: Host
    blocks: tuple[nn.Module, ...]
    sites: Mapping[str, Where]


def stack_of(model: nn.Module) -> Stack | None:
    """Known blocks of a model, or None. Raises `UserError` if they are in several lists."""
    hosts: dict[str, Host] = {}
    for name, module in model.named_modules():
        known = (HOSTS[path_of(kind)] for kind in type(module).__mro__ if path_of(kind) in HOSTS)
        if name and (host := next(known, None)) is not None:
            hosts[name] = host
    prefixes = sorted({name.rpartition(".")[0] for name in hosts})
    if len(prefixes) > 1:
        said = f"{type(model).__name__} has several stacks of blocks: {', '.join(prefixes)}"
        raise UserError(said, "Wrap the submodel of each separately.")
    if not hosts:
        return None

    def whole(name: str | None) -> str | None:
        return None if name is None else f"{prefixes[0]}.*.{name}".lstrip(".").rstrip(".")

    host = next(iter(hosts.values()))
    sites = {at: Where(whole(it.module) or "", whole(it.reads), it.part, it.parts) for at, it in host.sites.items()}
    return Stack(host, tuple(model.get_submodule(name) for name in hosts), sites)


def matches(model: nn.Module, pattern: str) -> dict[str, str]:
    """Names of the modules that match a pattern, by the text for `*`. Raises `UserError` if there are none."""
    if pattern.count("*") > 1:
        raise UserError(f"sites: {pattern} has more than one *; * stands for the layer")
    form = re.compile(re.escape(pattern).replace(r"\*", r"([^.]+)"))
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    found = {"".join(match.groups()): name for name in names if (match := form.fullmatch(name))}
    if not found:
        like = dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", name) for name in names if name)
        said = f"sites: {pattern} matches no module of {type(model).__name__}"
        raise UserError(said, f"It has {', '.join([*like][:30]) or 'no parts'}.")
    return found
