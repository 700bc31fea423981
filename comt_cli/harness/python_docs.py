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
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from comt_cli.data.storage import ProgressCallback
from comt_cli.data.text.settings import DataSettings, split_of
from comt_cli.files import cache_folder, canonical_json, make_folder, read_text, sha256, write_text

CLOZE, CHOICE = "python-docs-cloze", "python-docs-choice"
VERSION = 1
"""Raised by every change after which the items are others."""
HELD_OUT = 0.05
"""Share of the documents that are held out; of these the second half is the test split."""
_CHOICES = 4
_CONTEXT = 400  # characters
_WORDS = range(5, 31)  # of a sentence
_A_DOCUMENT = 8  # sentences, at most
_GAP = re.compile(r"(?<=[.!?])\s+")
_PROSE = re.compile(r"[A-Z][^<>=\[\]{}|*_\\]* [a-z]{3,}\.")
Item = dict[str, Any]

_SHARED = {
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "{{context}}",
    "metadata": {"version": VERSION},
}
_TASKS: Mapping[str, Mapping[str, Any]] = {
    CLOZE: {
        "output_type": "loglikelihood",
        "doc_to_target": " {{word}}",
        "target_delimiter": "",
        "metric_list": [
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
            {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
        ],
    },
    CHOICE: {
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
            {"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True},
        ],
    },
}
OWN_TASKS = tuple(_TASKS)


def write_tasks(progress: ProgressCallback) -> Path:
    """The folder with the task files and their data, for `lm_eval --include_path`; written once for each content.
    Raises `UserError` where this Python has no documentation, `StorageError`."""
    corpus = DataSettings(tokenizer="bytes", validation_fraction=HELD_OUT).make_corpus()
    corpus.identity(progress)
    splits: dict[str, list[str]] = {"train": [], "validation": []}
    for stream in corpus.streams():
        for document in stream.documents((0, 0)):
            splits[split_of(document.text, HELD_OUT)].append(document.text)
    documents = second_half(splits["validation"])
    items = dict(zip(OWN_TASKS, items_of(documents, splits["train"]), strict=True))
    content = sha256(canonical_json([_TASKS, items]))
    folder = cache_folder() / "tasks" / f"python-docs-{content[:12]}"
    make_folder(folder)
    for name, own in items.items():
        data = folder / f"{name}.jsonl"
        task = {"task": name, **_SHARED, **_TASKS[name], "dataset_kwargs": {"data_files": {"test": str(data)}}}
        lines = "".join(f"{json.dumps(item)}\n" for item in own)
        for path, text in ((data, lines), (folder / f"{name}.yaml", f"{json.dumps(task, indent=2)}\n")):
            if not path.exists() or read_text(path) != text:
                write_text(path, text)
    return folder


def second_half(documents: Sequence[str]) -> list[str]:
    """The documents behind the middle of all text."""
    ends = [*accumulate(map(len, documents))]
    return [text for text, end in zip(documents, ends, strict=True) if 2 * (end - len(text)) >= ends[-1]]


def items_of(documents: Sequence[str], trained: Sequence[str] = ()) -> tuple[list[Item], list[Item]]:
    """The items of both tasks, from up to `_A_DOCUMENT` sentences of each document that are in none of `trained`.

    Cloze: the text before the sentence's last word, and that word. Choice: the text before the sentence, if there is
    some, and four continuations, of which the others are such sentences of other documents. Which and in what order
    follows from hashes of the texts.
    """
    seen = " ".join(" ".join(trained).split())
    chosen = [(number, *each) for number, text in enumerate(documents) for each in _chosen(text, seen)]
    cloze, choice = list[Item](), list[Item]()
    for number, begin, sentence in chosen:
        before, _, word = sentence[:-1].rpartition(" ")
        cloze.append({"context": _last(documents[number][:begin] + before), "word": word})
        context = _last(documents[number][:begin].rstrip())

        def rank(text: str, key: str = f"{context}\n{sentence}") -> str:
            return sha256(f"{key}\n{text}")

        others = {other for of, _, other in chosen if of != number} - {sentence}
        choices = sorted([sentence, *sorted(others, key=rank)[: _CHOICES - 1]], key=lambda each: rank(f"at {each}"))
        if len(context.split()) >= _WORDS.start:
            choice.append({"context": context, "choices": choices, "answer": choices.index(sentence)})
    return cloze, choice


def _chosen(text: str, seen: str) -> list[tuple[int, str]]:
    """Sentences of prose with the places where they begin: those with the smallest hashes, in order. Line ends within
    are spaces."""
    begins = [0, *(gap.end() for gap in _GAP.finditer(text))]
    found = [(begin, " ".join(text[begin:end].split())) for begin, end in pairwise([*begins, len(text)])]
    prose = [each for each in found
             if len(each[1].split()) in _WORDS and _PROSE.fullmatch(each[1]) and each[1] not in seen]  # fmt: skip
    return sorted(sorted(prose, key=lambda each: sha256(each[1]))[:_A_DOCUMENT])


def _last(text: str) -> str:
    """The end of a text, from the beginning of a word on."""
    return text if len(text) <= _CONTEXT else text[-_CONTEXT:].partition(" ")[2]
