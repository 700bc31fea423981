"""Tasks for lm-evaluation-harness that need no network: the last word of a sentence, and the right continuation among
four, in documentation of Python that no model of `python-docs` is trained on.

Documents are those of the validation split, 5 % by the hash of their text; of these the second half by length, which
are the test split of `train.test_share=0.5` but for the document at the border. Without a test share they are evaluated
on while training too, and with `train.select=best` or a sweep they have helped to choose. Sentences that stand in a
document of the train split as well are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from comt_cli.data.storage import ProgressCallback
from comt_cli.data.text.settings import DataSettings, split_of
from comt_cli.files import cache_folder, canonical_json, make_folder, sha256, write_changed

OWN_TASKS = CLOZE, CHOICE = "python-docs-cloze", "python-docs-choice"
HELD_OUT = 0.05
_GAP, _PROSE = re.compile(r"(?<=[.!?])\s+"), re.compile(r"[A-Z][^<>=\[\]{}|*_\\]* [a-z]{3,}\.")
_WORDS, _MOST, _CONTEXT = range(5, 31), 8, 400  # words of a sentence, sentences of a document, characters before one
_ACC, _NORM = ({"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm"))
_NATS = {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
_KINDS: dict[str, dict[str, Any]] = {
    CLOZE: {"output_type": "loglikelihood", "doc_to_target": " {{word}}", "metric_list": [_ACC, _NATS]},
    CHOICE: {"output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "answer",
             "metric_list": [_ACC, _NORM]},
}  # fmt: skip
_BOTH = {"dataset_path": "json", "test_split": "test", "doc_to_text": "{{context}}", "metadata": {"version": 1}}
Item = dict[str, Any]


def write_tasks(progress: ProgressCallback) -> Path:
    """The folder of the task files and their data, for `lm_eval --include_path`: another one for other items. Raises
    `UserError` where this Python has no documentation, `StorageError`."""
    corpus = DataSettings(tokenizer="bytes", validation_fraction=HELD_OUT).make_corpus()
    corpus.identity(progress)
    splits: dict[str, list[str]] = {"train": [], "validation": []}
    for document in (each for stream in corpus.streams() for each in stream.documents((0, 0))):
        splits[split_of(document.text, HELD_OUT)].append(document.text)
    items = dict(zip(OWN_TASKS, items_of(second_half(splits["validation"]), splits["train"]), strict=True))
    folder = cache_folder() / "tasks" / f"python-docs-{sha256(canonical_json([_KINDS, _BOTH, items]))[:12]}"
    make_folder(folder)
    for name, own in items.items():
        data = folder / f"{name}.jsonl"
        write_changed(data, "".join(f"{json.dumps(item)}\n" for item in own))
        task = {"task": name, "dataset_kwargs": {"data_files": {"test": str(data)}}, **_BOTH, **_KINDS[name]}
        write_changed(folder / f"{name}.yaml", f"{json.dumps(task, indent=2)}\n")
    return folder


def second_half(documents: Sequence[str]) -> list[str]:
    """The documents behind the middle of all text."""
    ends = [*accumulate(map(len, documents))]
    return [text for text, end in zip(documents, ends, strict=True) if 2 * (end - len(text)) >= ends[-1]]


def items_of(documents: Sequence[str], trained: Sequence[str] = ()) -> tuple[list[Item], list[Item]]:
    """The items of both tasks, of sentences that are in none of `trained`: the text before the last word, and that; the
    text before the sentence, and four continuations, of which the others are such sentences of other documents. Which,
    and in what order, follows from hashes of the texts."""
    seen = " ".join(" ".join(trained).split())
    chosen = [(text, *each) for text in documents for each in _chosen(text, seen)]
    cloze, choice = list[Item](), list[Item]()
    for text, begin, sentence in chosen:
        before, _, word = sentence[:-1].rpartition(" ")
        cloze.append({"context": _end(text[:begin] + before), "word": word})
        context = _end(text[:begin].rstrip())
        rank = {each: sha256(f"{context}\n{sentence}\n{each}") for _, _, each in chosen}
        others = sorted({each for of, _, each in chosen if of != text} - {sentence}, key=rank.__getitem__)[:3]
        choices = sorted([sentence, *others], key=lambda each: sha256(f"{context}\n{each}"))
        if len(context.split()) >= _WORDS.start:
            choice.append({"context": context, "choices": choices, "answer": choices.index(sentence)})
    return cloze, choice


def _chosen(text: str, seen: str) -> list[tuple[int, str]]:
    """Sentences of prose, with spaces for line ends, and where each begins: those with the smallest hashes in order."""
    begins = [0, *(gap.end() for gap in _GAP.finditer(text)), len(text)]
    found = [(begin, " ".join(text[begin:end].split())) for begin, end in pairwise(begins)]
    prose = [each for each in found if len(each[1].split()) in _WORDS and _PROSE.fullmatch(each[1])]
    return sorted(sorted((e for e in prose if e[1] not in seen), key=lambda each: sha256(each[1]))[:_MOST])


def _end(text: str) -> str:
    return text if len(text) <= _CONTEXT else text[-_CONTEXT:].partition(" ")[2]
