"""Tasks for lm-evaluation-harness that need no network: the last word of a sentence, and the right continuation among
four, in documentation of Python on which no model of `python-docs` is trained.

The documents are those of the validation split (5 % by the hash of their text), of which the second half by length.
This is the test split of `train.test_share=0.5`, except for the document at the border. Without a test share they are
also evaluated during training, and `train.select=best` or a sweep uses them for selection. Sentences whose words occur
in a document of the train split are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from comt_cli.data.glue.sources.text_tasks import WORDS, sentences_of, told_in
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.text.settings import DataSettings, split_of
from comt_cli.data.text.splits import train_texts
from comt_cli.files import cache_folder, canonical_json, make_folder, sha256, write_changed

OWN_TASKS = CLOZE, CHOICE = "python-docs-cloze", "python-docs-choice"
HELD_OUT = 0.05
_MOST, _CONTEXT = 8, 400  # sentences of a document, characters before one
_ACC, _NORM = ({"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm"))
_NATS = {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
_BOTH = {"dataset_path": "json", "test_split": "test", "doc_to_text": "{{context}}", "metadata": {"version": 1}}
_KINDS: dict[str, dict[str, Any]] = {
    CLOZE: {**_BOTH, "output_type": "loglikelihood", "doc_to_target": " {{word}}", "metric_list": [_ACC, _NATS]},
    CHOICE: {**_BOTH, "output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "answer",
             "metric_list": [_ACC, _NORM]},
}  # fmt: skip
Item = dict[str, Any]


def write_tasks(progress: ProgressCallback) -> Path:
    """Folder of the task files and their data, for `lm_eval --include_path`; it differs for other items. Raises
    `UserError` if this Python has no documentation, `StorageError`."""
    corpus = DataSettings(tokenizer="bytes", validation_fraction=HELD_OUT).make_corpus()
    corpus.identity(progress)
    texts = (document.text for stream in corpus.streams() for document in stream.documents((0, 0)))
    documents = second_half([text for text in texts if split_of(text, HELD_OUT) == "validation"])
    held = (sentence for text in documents for sentence in sentences_of(text))
    told = told_in(train_texts(corpus, HELD_OUT), held, progress)
    items = dict(zip(OWN_TASKS, items_of(documents, told), strict=True))
    folder = cache_folder() / "tasks" / f"python-docs-{sha256(canonical_json([_KINDS, items]))[:12]}"
    make_folder(folder)
    for name, own in items.items():
        data = folder / f"{name}.jsonl"
        write_changed(data, "".join(f"{json.dumps(item)}\n" for item in own))
        task = {"task": name, "dataset_kwargs": {"data_files": {"test": str(data)}}, **_KINDS[name]}
        write_changed(folder / f"{name}.yaml", f"{json.dumps(task, indent=2)}\n")
    return folder


def second_half(documents: Sequence[str]) -> list[str]:
    """Documents after the middle of all text."""
    ends = [*accumulate(map(len, documents))]
    return [text for text, end in zip(documents, ends, strict=True) if 2 * (end - len(text)) >= ends[-1]]


def items_of(documents: Sequence[str], told: Iterable[str] = ()) -> tuple[list[Item], list[Item]]:
    """Items of both tasks, from some sentences of each document that were not `told` in training. A cloze item is the
    text before the last word and that word. A choice item is the text before the sentence and four continuations, three
    of them sentences of other documents. Hashes of the texts decide which, and in what order."""
    chosen: list[tuple[str, int, str]] = []
    for text in documents:
        some = sorted({*sentences_of(text)}.difference(told), key=sha256)[:_MOST]
        # A sentence may span several lines.
        found = [(re.search(r"\s+".join(map(re.escape, each.split())), text), each) for each in some]
        chosen += sorted((text, place.start(), each) for place, each in found if place)
    cloze, choice = list[Item](), list[Item]()
    for text, begin, sentence in chosen:
        before, _, word = sentence[:-1].rpartition(" ")
        if re.fullmatch("[a-z]{3,}", word):
            cloze.append({"context": _end(text[:begin] + before), "word": word})
        context = _end(text[:begin].rstrip())
        rank = {each: sha256(f"{context}\n{sentence}\n{each}") for of, _, each in chosen if of != text}
        others = sorted(rank.keys() - {*sentences_of(text)}, key=rank.__getitem__)[:3]
        choices = sorted([sentence, *others], key=lambda each: sha256(f"{context}\n{each}"))
        if len(context.split()) >= WORDS.start:
            choice.append({"context": context, "choices": choices, "answer": choices.index(sentence)})
    return cloze, choice


def _end(text: str) -> str:
    return text if len(text) <= _CONTEXT else text[-_CONTEXT:].partition(" ")[2]
