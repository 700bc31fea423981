"""Language models as folders for transformers: plain LLaMAs in its own class, all others with a code file.

The model type of the latter is `comt`. Without `trust_remote_code` it fails; LLaMA's type would silently drop gates.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import symtable
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from comt_cli import __version__
from comt_cli.commit import git_commit
from comt_cli.data.published import CONFIG, WEIGHTS
from comt_cli.errors import UserError
from comt_cli.exchange.codecs import Files, tokenizer_files
from comt_cli.exchange.huggingface import SITES, is_plain_llama, llama_config, split
from comt_cli.exchange.loaded import Loaded, LoadedModel, LoadedText
from comt_cli.files import atomic_file, make_folder, write_json
from comt_cli.layers.gates import CarriesGates, read_by
from comt_cli.layers.positions import rotate
from comt_cli.layers.projection import Projections
from comt_cli.library.bundle import Bundle
from comt_cli.methods import in_words, method_from
from comt_cli.models.llama import Llama

CODE = "modeling_comt.py"
MOST_LINES = 500
LEFT_OUT = ("TransponderGate.scaled", "ResidualBlock.convolution", "ResidualBlock.norm")
"""Methods that compute the same as a base class with less memory in training, or that build a block."""
_GATES = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj", "sdpa"), "mlp": ("gate_proj", "up_proj", "down_proj")}
"""Modules of a layer that hold the gates of these sites. Gates on branches are the layer's own."""


def write_huggingface(
    loaded: LoadedModel, folder: Path, result: Mapping[str, Any] | None = None
) -> list[tuple[Path, str]]:
    """Write `loaded` as a folder that transformers reads, with a model card, and for a run its `result`. Weights keep
    their types. Returns every path with a description. The configuration is written last, so an incomplete folder is
    not mistaken for a model. Raises `UserError` if a part cannot be code, or the folder is in use; `StorageError`."""
    if is_plain_llama(loaded.model):
        config = llama_config(loaded.model, loaded.context_length)
        return write_folder(loaded, folder, Files(), split(loaded.model), config, result)
    origin = loaded.spec or getattr(loaded.model, "comt_wrapping", None)
    network = Network(loaded.model, None if origin is None else origin.method)
    config = {**llama_config(loaded.model, loaded.context_length), **network.config()}
    files: Files = {CODE: (network.code(loaded.description).encode(), "the network, for transformers")}
    return write_folder(loaded, folder, files, network.tensors, config, result)


def write_folder(
    loaded: Loaded, folder: Path, files: Files, tensors: Mapping[str, Tensor], config: dict[str, Any],
    result: Mapping[str, Any] | None,
) -> list[tuple[Path, str]]:  # fmt: skip
    """Write `files`, tensors, the tokenizer of a text model, its card, and last `config`; returns as
    `write_huggingface`. Raises `UserError` if the folder is in use; `StorageError`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder", "Name a new folder; nothing is overwritten.")
    # Fused weights share memory; safetensors requires separate bytes for each name.
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    files[WEIGHTS] = safetensors.torch.save(tensors, {"format": "pt"}), f"{len(tensors)} tensors"
    if isinstance(loaded, LoadedText) and loaded.codec is not None:
        more, special = tokenizer_files(loaded.codec, loaded.context_length)
        files, config = files | more, config | special
    code = next((name for name in files if name.endswith(".py")), None)
    card = _card(loaded, result or {}, code=code, has_tokenizer="tokenizer.json" in files, config=config)
    files["README.md"] = card.encode(), "what it is, and how to load it"
    make_folder(folder)
    for name, (content, _) in files.items():
        with atomic_file(folder / name) as handle:
            handle.write(content)
    write_json(folder / CONFIG, config)
    written = [(folder / name, said) for name, (_, said) in files.items()]
    return [*written, (folder / CONFIG, f"{config['architectures'][0]}: {loaded.description}")]


def _card(loaded: Loaded, result: Mapping[str, Any], **known: Any) -> str:
    spec, about = loaded.spec, ""
    if spec is not None:
        found = {metric: result[key] for key, metric in spec.task.metrics.items() if result.get(key) is not None}
        known["scores"] = [(metric.words, f"{value:.{metric.decimals}f}") for metric, value in found.items()]
        known["method"] = in_words(spec.method)
        about = inspect.getdoc(sys.modules[type(method_from(spec.method)).__module__]) or ""
    card: str = _template("README.md").render(
        loaded=loaded, spec=spec, result=result, version=__version__, commit=git_commit(), about=about, **known
    )
    return card


class Parts:
    """Modules as plain data (`modules`), from which a code file, made from a `template`, rebuilds them. `tensors` are
    their tensors by name, `every` all modules, `roots` other code, `named` the values of the template."""

    def __init__(
        self, template: str, every: Iterable[nn.Module], *roots: type | Callable[..., Any], **named: Any
    ) -> None:
        self.template, self.named = template, named
        self.tensors, self.modules = dict[str, Tensor](), list[dict[str, Any]]()
        kinds = {type(module): None for module in every if not _of_torch(type(module))}
        around = _template(template).render(title="", version="", parts="", **named)
        names = {node.attr for node in ast.walk(ast.parse(around)) if isinstance(node, ast.Attribute)}
        known = symtable.symtable(around, template, "exec").get_identifiers()  # at its top
        self.bundle = Bundle([*kinds, *roots], names | {"__reduce_ex__"}, known, LEFT_OUT)

    def numbered(self, parts: Mapping[str, nn.Module | None], path: str) -> dict[str, int | None]:
        """Number of each module by its place. The names of its tensors begin with `path`."""
        seen: dict[nn.Module, str] = {}
        return {place: self._number(module, place, path, seen) if module else None for place, module in parts.items()}

    def _number(self, module: nn.Module, place: str, path: str, seen: dict[nn.Module, str]) -> int:
        """Number of a module. Equal modules of several layers are stored once; one in two places has its first name."""
        seen[module] = place
        kind, said = type(module), dict[str, Any]()
        said["class"] = f"nn.{kind.__name__}" if _of_torch(kind) else kind.__name__
        usual = vars(nn.Module()).keys()
        own = {name: value for name, value in vars(module).items() if name not in usual}
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            # A number that depends on the update is constant now; vLLM does not accept it as a weight.
            if tensor is None or (name in module._buffers and tensor.ndim == 0):
                own[name] = tensor
                continue
            self.tensors[f"{path}{place}.{name}"] = tensor
            said.setdefault("tensors", {})[name] = [list(tensor.shape), name in module._parameters]
        read = own if _of_torch(kind) else self.bundle.reads
        for name, value in own.items():
            if name in read:
                said.setdefault("attributes", {})[name] = self._plain(value, f"{kind.__name__}.{name}")
        for name, inner in module.named_children():
            other = seen.get(inner) or self._number(inner, f"{place}.{name}", path, seen)
            said.setdefault("modules", {})[name] = other
        if said not in self.modules:
            self.modules.append(said)
        return self.modules.index(said)

    def _plain(self, value: Any, where: str) -> Any:
        """An attribute as JSON. Raises `UserError` if it cannot be stored."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return [self._plain(each, where) for each in value]
        if isinstance(value, tuple):
            return {"tuple": [self._plain(each, where) for each in value]}
        if isinstance(value, Tensor):
            return {"tensor": [str(value.dtype).removeprefix("torch."), value.tolist()]}
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"dict": {key: self._plain(each, where) for key, each in value.items()}}
        if dataclasses.is_dataclass(value):  # a site: only fields that are read and can be stored
            plain = {name: each for name, each in vars(value).items() if isinstance(each, bool | int | float | str)}
            return {"fields": {name: each for name, each in plain.items() if name in self.bundle.reads}}
        said = f"{where} is a {type(value).__name__}, which config.json cannot store"
        raise UserError(said, "Exported parts may read only numbers, texts, tensors and modules.")

    def code(self, title: str) -> str:
        """Code file. Raises `UserError` if it would exceed `MOST_LINES`."""
        code: str = _template(self.template).render(title=title, version=__version__, parts=self.bundle, **self.named)
        if (lines := len(code.splitlines())) > MOST_LINES:
            raise UserError(f"the network's code would have {lines} lines; at most {MOST_LINES} are exported")
        return code + "\n"


class Network(Parts):
    """A LLaMA with any parts, as plain data and tensors."""

    def __init__(self, model: Llama, method: Mapping[str, Any] | None = None) -> None:
        if model.looks_back:
            said = "a network with smear cannot be exported: transformers' cache has no previous token"
            raise UserError(said, "comt generate decodes it.")
        self.model, self.method = model, method
        ends = {"entry": model.entry, "read_out": model.read_out, "norm": model.final_norm}
        parts = {f"model.layers.{layer}.": self._parts(block) for layer, block in enumerate(model.blocks)}
        every = [
            module for part in [ends, *parts.values()] for root in part.values() if root for module in root.modules()
        ]
        super().__init__(CODE, every, rotate, read_by)
        self.tensors["model.embed_tokens.weight"] = model.embedding.weight
        if model.head is not None:
            self.tensors["lm_head.weight"] = model.head.weight
        for path, block in zip(parts, model.blocks, strict=True):
            for projections in (module for module in block.modules() if isinstance(module, Projections)):
                each = projections.site_weights().items()
                self.tensors |= {f"{path}{SITES[site]}.weight": weight for site, weight in each}
        self.ends = self.numbered(ends, "model.")
        self.blocks = [
            {"has_values": f"{path}{SITES['v_proj']}.weight" in self.tensors, "modules": self.numbered(part, path)}
            for path, part in parts.items()
        ]

    def _parts(self, block: Any) -> dict[str, nn.Module | None]:
        gates: dict[str, nn.Module] = {}
        for module in block.modules():
            if isinstance(module, CarriesGates):
                gates |= module.gates.items()
        parts: dict[str, nn.Module | None] = {
            "attention_connection": block.attention_connection,
            "mlp_connection": block.mlp_connection,
            "self_attn.shared": block.attention.shared,
            "self_attn.value_embedding": block.attention.value_embedding,
            "self_attn.norms": block.attention.norms,
            "self_attn.exclude": block.attention.exclude,
        }
        for place, sites in _GATES.items():
            parts[f"{place}.gates"] = nn.ModuleDict({site: gates.pop(site) for site in sites if site in gates}) or None
        return {**parts, "gates": nn.ModuleDict(gates) or None}

    def config(self) -> dict[str, Any]:
        """Entries of config.json that are added to, or replace, those of a LLaMA."""
        classes = {"AutoConfig": "ComtConfig", "AutoModel": "ComtModel", "AutoModelForCausalLM": "ComtForCausalLM"}
        return {
            "architectures": ["ComtForCausalLM"],
            "model_type": "comt",
            "auto_map": {auto: f"modeling_comt.{own}" for auto, own in classes.items()},
            "ends": self.ends,
            "blocks": self.blocks,
            "modules": self.modules,
            **({} if self.method is None else {"comt": self._origin()}),
        }

    def _origin(self) -> dict[str, Any]:
        """Method and settings of the network, and its numbers that are not stored as tensors."""
        numbers = {name: float(value) for name, value in self.model.named_buffers() if value.ndim == 0}
        return {"method": self.method, "settings": self.model.settings.model_dump(mode="json"), "numbers": numbers}


@functools.cache
def _template(name: str) -> Any:
    import jinja2

    folder = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(loader=folder, trim_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.get_template(f"{name}.jinja")


def _of_torch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"
