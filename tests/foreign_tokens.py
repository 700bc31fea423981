"""Tokenizers and files of tokens as other tools write them, small."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END = "<|endoftext|>"


def byte_level(texts: Iterable[str], size: int = 290, end: str = END) -> Tokenizer:
    """A BPE tokenizer like GPT-2's, trained on `texts`: ids 0 to 255 are bytes, the last one ends a text."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size - 1, initial_alphabet=alphabet))
    library.add_special_tokens([end])
    return library


def words(texts: Iterable[str], special: Sequence[str] = ("<s>", "</s>", "<unk>")) -> Tokenizer:
    """Whole words, whose vocabulary has the special tokens, with a begin and an end token around every text."""
    library = Tokenizer(models.WordLevel(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=[*special], min_frequency=1))
    ids = [(each, library.token_to_id(each)) for each in ("<s>", "</s>")]
    library.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ids)
    return library


def write_tokenizer(folder: Path, library: Tokenizer, **configuration: Any) -> Path:
    """A folder as transformers writes it; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    if configuration:
        (folder / "tokenizer_config.json").write_text(json.dumps(configuration), encoding="utf-8")
    return folder


def nanogpt(ids: Sequence[int], dtype: str = "<u2") -> bytes:
    """As karpathy/nanoGPT's data/*/prepare.py writes them."""
    return np.array(ids).astype(dtype).tobytes()


def llm_c(ids: Sequence[int], magic: int = 20240520, version: int = 1, dtype: str = "<u2") -> bytes:
    """As karpathy/llm.c's dev/data/data_common.py writes them."""
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(ids)
    return header.tobytes() + nanogpt(ids, dtype)


def write_litdata(folder: Path, chunks: Sequence[Sequence[Sequence[int]]], **config: Any) -> None:
    """Chunks of items as Lightning-AI/litData's `BinaryWriter` writes those of `TokensLoader`: int32 tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {"chunks": [], "config": {"compression": None, "encryption": None}}
    index["config"] |= {"data_format": ["no_header_tensor:16"], "item_loader": "TokensLoader"} | config
    for number, items in enumerate(chunks):
        begin = 4 * (len(items) + 2)
        offsets = begin + 4 * np.cumsum([0, *map(len, items)])
        body = b"".join(nanogpt(item, "<i4") for item in items)
        content = np.array([len(items), *offsets], dtype="<u4").tobytes() + body
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(content)
        entry = {"chunk_bytes": len(content), "chunk_size": len(items), "dim": sum(map(len, items)), "filename": name}
        index["chunks"].append(entry)
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
