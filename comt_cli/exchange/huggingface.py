"""Folders in Hugging Face's layout: plain LLaMA and BERT checkpoints out of and into comt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import tokenizers
from torch import Tensor

from comt_cli.errors import StorageError, UserError
from comt_cli.exchange.codecs import LibraryCodec, tokenizer_files
from comt_cli.exchange.huggingface_layout import LAYOUTS, READ_HERE, Layout, type_name
from comt_cli.exchange.loaded import LoadedText, gated_sites, residual_name
from comt_cli.files import atomic_file, read_json, write_json
from comt_cli.layers.norms import EmbeddingNorm
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.layers.shared_values import SharedValues

CONFIG, WEIGHTS, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
HUB_FILES = [CONFIG, "*.safetensors", INDEX, TOKENIZER]
"""Files fetched of a hub repository: configuration, weights, tokenizer. No pickles, no code."""


def write_huggingface(loaded: LoadedText, folder: Path) -> list[tuple[Path, str]]:
    """Write `loaded` as a folder that `transformers` reads: as LlamaForCausalLM, BertForMaskedLM, or
    BertForSequenceClassification. Weights keep their types. Returns every path with a few words on what it holds. The
    configuration is written last: a folder whose writing was cut short is not taken for a model.

    Raises:
        UserError: the layout cannot express the network (gates, another residual connection), or the folder is in use.
        StorageError: the disk is full or the folder cannot be written.
    """
    layout = LAYOUTS[loaded.model.settings.family]
    _refuse_inexpressible(loaded.model, layout)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder", "Name a new one; nothing is overwritten.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror}") from error
    tensors = {name: tensor.contiguous() for name, tensor in layout.split(loaded.model).items()}
    # Fused weights are stored once in memory; safetensors wants each name to own its bytes.
    content = safetensors.torch.save({name: tensor.clone() for name, tensor in tensors.items()}, {"format": "pt"})
    with atomic_file(folder / WEIGHTS) as handle:
        handle.write(content)
    written = [(folder / WEIGHTS, f"{len(tensors)} tensors, {type_name(loaded.model)}")]
    special: dict[str, int] = {}
    if loaded.codec is not None:
        files, special = tokenizer_files(loaded.codec, loaded.context_length)
        for name, (data, words) in files.items():
            with atomic_file(folder / name) as handle:
                handle.write(data)
            written.append((folder / name, words))
    config = layout.config(loaded.model, loaded.context_length)
    write_json(folder / CONFIG, config | special)
    written.append((folder / CONFIG, f"{config['architectures'][0]}: {loaded.description}"))
    return written


def read_huggingface(folder: Path, name: str | None = None) -> LoadedText:
    """Read a LLaMA or BERT from a folder with config.json, model.safetensors (one or several files) and tokenizer.json.
    `name` replaces the folder's. Raises `UserError` where a file is missing, damaged, or of another architecture, or an
    option is one that our models lack."""
    config = _read_json(folder / CONFIG)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in LAYOUTS:
        raise UserError(f"{folder / CONFIG} describes {config.get('architectures')} of type {kind!r}", READ_HERE)
    codec = _read_tokenizer(folder / TOKENIZER, config)
    return LAYOUTS[kind].load(config, _read_weights(folder), str(folder), name or folder.resolve().name, codec)


def _refuse_inexpressible(model: Any, layout: Layout) -> None:
    reasons = []
    if sites := gated_sites(model):
        reasons.append(f"gates at {', '.join(sites)}")
    connections = [module for module in model.modules() if isinstance(module, ResidualConnection)]
    norms = [module for connection in connections for module in connection.children()]
    norms += [module for name, module in model.named_modules() if name in layout.outer_norms]
    if not all(type(connection) in layout.connections for connection in connections):
        reasons.append(f"the residual connection {residual_name(model)}")
    elif not all(isinstance(norm, layout.norm) for norm in norms):
        reasons.append(f"norms other than {layout.norm.__name__}")
    if any(isinstance(module, EmbeddingNorm) for module in model.modules()):
        reasons.append("a normalised embedding")
    if any(isinstance(module, SharedValues) for module in model.modules()):
        reasons.append("values of earlier blocks in attention")
    if reasons:
        raise UserError(
            f"Hugging Face's {layout.ours} cannot express {' and '.join(reasons)}",
            f"Only {layout.joined} models without gates can be exported; the checkpoint itself loads wherever comt is.",
        )


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, from its one file or from those that its index names."""
    index = folder / INDEX
    if index.exists():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise UserError(f"{index} has no weight_map")
        names = sorted({str(value) for value in weight_map.values()})
        if outside := [name for name in names if Path(name).name != name]:
            raise UserError(f"{index} points outside its folder: {outside[0]}")
    elif (folder / WEIGHTS).exists():
        names = [WEIGHTS]
    else:
        pickles = sorted(path.name for path in [*folder.glob("*.bin"), *folder.glob("*.pth")])
        if pickles:
            raise UserError(
                f"{folder} holds its weights as a pickle ({pickles[0]}), which can run code when it is read",
                "comt reads safetensors; transformers' save_pretrained writes them.",
            )
        raise UserError(f"{folder} holds no weights", f"It needs {WEIGHTS}, or {INDEX} with the files that it names.")
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors.update(safetensors.torch.load_file(folder / name))
        except FileNotFoundError:
            raise UserError(f"{folder} lacks {name}, which its index names") from None
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{folder / name} is not a whole safetensors file: {error}", "Copy it again.") from None
    return tensors


def _read_tokenizer(path: Path, config: Mapping[str, Any]) -> LibraryCodec | None:
    if not path.exists():
        return None
    begins, ends = (
        [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)]
        for value in (config.get("bos_token_id"), config.get("eos_token_id"))
    )
    try:
        return LibraryCodec(tokenizers.Tokenizer.from_file(str(path)), begins[0] if begins else None, ends)
    except Exception as error:  # the library raises bare `Exception` for whatever is wrong with the file
        raise UserError(f"{path} is not a tokenizer: {error}", "Copy it again.") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except (FileNotFoundError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} does not hold a JSON object")
    return value
