"""GLUE's own tasks (Wang et al. 2019), from the Hugging Face hub or a folder. They are tested on the development set,
because the labels of the test sets are secret; for mnli "test" is the matched set, "unseen" the mismatched one. Classes
have the hub's numbers; F1 counts class 1.

A folder has GLUE's unpacked archives, such as `MRPC/train.tsv` and `MRPC/dev.tsv`: UTF-8, one example per line, columns
separated by tabs, without quotes. Lines with fewer columns (a few of QQP's) are left out, as on the hub.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from comt_cli.data import hub
from comt_cli.data.glue.settings import Example, GlueData, GlueSource, GlueSplitName, Labels
from comt_cli.data.storage import ProgressCallback, hash_files, no_progress
from comt_cli.errors import UserError
from comt_cli.files import read_text

REPOSITORY, REVISION = "nyu-mll/glue", "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
MOST_ALIKE = 5.0  # the largest label of STS-B; the smallest is 0
_SHORT_LINES = 0.01  # the maximum share of a file's lines with missing columns


@dataclass(frozen=True)
class Form:
    """A task: its `labels` with measures; its `folder` in GLUE's archive; the `columns` of texts on the hub; the
    columns of texts and label in a folder's files (`tsv`), by name or index; and their `classes` (None: numbers)."""

    labels: Labels
    folder: str
    columns: tuple[str, ...]
    tsv: tuple[str | int, ...]
    classes: Mapping[str, int] | None


_TWO = ("sentence1", "sentence2")
_ACCURACY = Labels(2, ("accuracy",))
_BOTH = Labels(2, ("accuracy", "f1"))
_BINARY = {"0": 0, "1": 1}
_ENTAILED = {"entailment": 0, "not_entailment": 1}
_NLI = {"entailment": 0, "neutral": 1, "contradiction": 2}
FORMS = {
    "cola": Form(Labels(2, ("mcc",)), "CoLA", ("sentence",), (3, 1), _BINARY),
    "sst2": Form(_ACCURACY, "SST-2", ("sentence",), ("sentence", "label"), _BINARY),
    "mrpc": Form(_BOTH, "MRPC", _TWO, ("#1 String", "#2 String", "Quality"), _BINARY),
    "qqp": Form(_BOTH, "QQP", ("question1", "question2"), ("question1", "question2", "is_duplicate"), _BINARY),
    "stsb": Form(Labels(1, ("pearson", "spearman")), "STS-B", _TWO, (*_TWO, "score"), None),
    "mnli": Form(Labels(3, ("accuracy",)), "MNLI", ("premise", "hypothesis"), (*_TWO, "gold_label"), _NLI),
    "qnli": Form(_ACCURACY, "QNLI", ("question", "sentence"), ("question", "sentence", "label"), _ENTAILED),
    "rte": Form(_ACCURACY, "RTE", _TWO, (*_TWO, "label"), _ENTAILED),
    "wnli": Form(_ACCURACY, "WNLI", _TWO, (*_TWO, "label"), _BINARY),
}


def splits_of(task: str) -> Mapping[GlueSplitName, tuple[str, str]]:
    """The splits with their names on the hub and in a folder."""
    if task != "mnli":
        return {"train": ("train", "train"), "test": ("validation", "dev")}
    matched, mismatched = (("validation_" + each, "dev_" + each) for each in ("matched", "mismatched"))
    return {"train": ("train", "train"), "test": matched, "unseen": mismatched}


class Published(GlueSource):
    """A task on the hub, fetched when its examples are read, or in a folder of GLUE's archives."""

    tasks: ClassVar[Mapping[str, Labels]] = {task: form.labels for task, form in FORMS.items()}
    names = tuple(tasks)
    keys: ClassVar[Mapping[str, Any]] = {"glue_folder": None}

    def __init__(self, data: GlueData) -> None:
        super().__init__(data)
        self._form, self._files = FORMS[data.task], dict[GlueSplitName, Path]()
        if data.glue_folder is not None:
            folder = Path(data.glue_folder).expanduser() / self._form.folder
            self._files = {split: folder / f"{name}.tsv" for split, (_, name) in splits_of(data.task).items()}

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        if not self._files:
            return ["glue", REPOSITORY, REVISION, self.data.task]
        hashes = hash_files([*self._files.values()], progress, "glue_folder")
        return ["glue-folder", dict(zip(self._files, hashes, strict=True))]

    def read(self, progress: ProgressCallback) -> dict[GlueSplitName, list[Example]]:
        task, found = self.data.task, dict[GlueSplitName, list[Example]]()
        for split, path in self._files.items():
            progress(f"reading {path.name} of {task}", 0, None)
            found[split] = list(_lines(path, self._form))
        if found:
            return found
        instead = (
            "Without network, unpack GLUE's archive and give its folder: --set data.glue_folder=/some/folder, with "
            f"{self._form.folder}/train.tsv in it."
        )
        with hub.reachable(task, REPOSITORY, instead):
            for split, (name, _) in splits_of(task).items():
                progress(f"reading the {name} split of {task}", 0, None)
                rows = hub.from_place(hub.open_files(REPOSITORY, REVISION, f"{task}/{name}-*.parquet"))
                found[split] = [self._example(row) for _, row in rows]
        return found

    def _example(self, row: hub.Row) -> Example:
        first, *second = (row[column] for column in self._form.columns)
        return Example(first, second[0] if second else None, row["label"])


def _lines(path: Path, form: Form) -> Iterator[Example]:
    try:
        lines = read_text(path).replace("\r\n", "\n").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise _wrong(path, str(error)) from error
    begin = int(isinstance(form.tsv[0], str))  # after the line of column names
    names = [name.strip() if begin else place for place, name in enumerate(lines[0].split("\t"))]
    if missing := [str(column) for column in form.tsv if column not in names]:
        raise _wrong(path, f"its first line has no column {missing[0]}; it has {', '.join(map(str, names))}")
    places = [names.index(column) for column in form.tsv]
    rows = [(number, line.split("\t")) for number, line in enumerate(lines[begin:], begin + 1)]
    long = [(number, columns) for number, columns in rows if len(columns) > max(places)]
    if (short := len(rows) - len(long)) > _SHORT_LINES * len(lines):
        raise _wrong(path, f"{short:,} of {len(lines):,} lines have fewer than {max(places) + 1} columns between tabs")
    for number, columns in long:
        first, *second, label = (columns[place].strip() for place in places)
        yield Example(first, second[0] if second else None, _label(label, form, path, number))


def _label(said: str, form: Form, path: Path, line: int) -> float:
    if form.classes is not None and said in form.classes:
        return form.classes[said]
    with contextlib.suppress(ValueError):
        if form.classes is None and 0 <= (number := float(said)) <= MOST_ALIKE:
            return number
    allowed = f"a number from 0 to {MOST_ALIKE:g}" if form.classes is None else f"one of {', '.join(form.classes)}"
    raise _wrong(path, f"line {line:,} has the label {said!r}, not {allowed}")


def _wrong(path: Path, why: str) -> UserError:
    hint = "It should be the file of GLUE's archive: UTF-8, columns separated by tabs."
    return UserError(f"glue_folder: {path}: {why}", hint)
