"""GLUE's own tasks (Wang et al. 2019), from the Hugging Face hub or a folder.

The labels of GLUE's test sets are secret, so what is tested on is its development set, as in papers; of mnli "test" is
the matched one, "unseen" the mismatched one. The classes are numbered as on the hub, where 1 is what F1 counts: the
same meaning.

A folder has GLUE's archives unpacked, one folder a task, such as `MRPC/train.tsv` and `MRPC/dev.tsv`: UTF-8, a line an
example, columns between tabs, without quotes. Lines with fewer columns, of which Quora's pairs have a few, are left out
there as on the hub.

Nothing of it could be downloaded where this was written: both readers are tested on files of the same form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli.data.glue.corpus import Asked, Example, GlueSource, GlueSplitName
from comt_cli.data.hub import RowFiles, from_place, open_files, reachable
from comt_cli.data.known_hashes import KnownHashes
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.errors import UserError
from comt_cli.files import read_text

if TYPE_CHECKING:
    from comt_cli.data.glue.settings import GlueData

REPOSITORY, REVISION = "nyu-mll/glue", "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
_LARGEST = 1 << 30
_SHORT_LINES = 0.01  # so many of a file's lines may have fewer columns than they should

_ENTAILED = {"entailment": 0, "not_entailment": 1}
_BINARY = {"0": 0, "1": 1}


@dataclass(frozen=True)
class Form:
    """A task: what it asks for, and where its texts and labels are.

    Attributes:
        folder: what GLUE's archive calls it.
        columns: of the hub's texts; the label is `label`, a number.
        tsv: of the texts and the label in a folder's files, by their names in the first line or, where there is no such
            line, by their place from 0 on.
        classes: what a folder's files call each class; None where the label is a number.
    """

    asked: Asked
    folder: str
    columns: tuple[str, ...]
    tsv: tuple[str | int, ...]
    classes: Mapping[str, int] | None


_TWO = ("sentence1", "sentence2")
_ACCURACY = Asked(2, ("accuracy",))
_BOTH = Asked(2, ("accuracy", "f1"))
_NLI = {"entailment": 0, "neutral": 1, "contradiction": 2}
FORMS = {
    "cola": Form(Asked(2, ("mcc",)), "CoLA", ("sentence",), (3, 1), _BINARY),
    "sst2": Form(_ACCURACY, "SST-2", ("sentence",), ("sentence", "label"), _BINARY),
    "mrpc": Form(_BOTH, "MRPC", _TWO, ("#1 String", "#2 String", "Quality"), _BINARY),
    "qqp": Form(_BOTH, "QQP", ("question1", "question2"), ("question1", "question2", "is_duplicate"), _BINARY),
    "stsb": Form(Asked(1, ("pearson", "spearman")), "STS-B", _TWO, (*_TWO, "score"), None),
    "mnli": Form(Asked(3, ("accuracy",)), "MNLI", ("premise", "hypothesis"), (*_TWO, "gold_label"), _NLI),
    "qnli": Form(_ACCURACY, "QNLI", ("question", "sentence"), ("question", "sentence", "label"), _ENTAILED),
    "rte": Form(_ACCURACY, "RTE", _TWO, (*_TWO, "label"), _ENTAILED),
    "wnli": Form(_ACCURACY, "WNLI", _TWO, (*_TWO, "label"), _BINARY),
}

MOST_ALIKE = 5.0
"""STS-B's numbers go from 0 to this."""


def splits_of(task: str) -> Mapping[GlueSplitName, tuple[str, str]]:
    """The splits and what each is called on the hub and in a folder."""
    if task == "mnli":
        return {
            "train": ("train", "train"),
            "test": ("validation_matched", "dev_matched"),
            "unseen": ("validation_mismatched", "dev_mismatched"),
        }
    return {"train": ("train", "train"), "test": ("validation", "dev")}


class HubExamples(GlueSource):
    """A task on the hub. Nothing is fetched before its examples are read."""

    tasks: ClassVar[Mapping[str, Asked]] = {task: form.asked for task, form in FORMS.items()}
    names = tuple(tasks)
    keys: ClassVar[Mapping[str, Any]] = {"glue_folder": None}

    def __init__(self, data: GlueData, open_split: Callable[[str, str, str], RowFiles] = open_files) -> None:
        """`open_split` gives the files of (repository, revision, pattern); it may raise anything without network."""
        super().__init__(data)
        self._task, self._classes, self._open = data.task, data.classes, open_split

    @classmethod
    def of(cls, data: GlueData) -> GlueSource:
        """On the hub, or in the folder that is named."""
        return cls(data) if data.glue_folder is None else FolderExamples(data)

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """What is asked of the hub; known without network."""
        return ["glue", REPOSITORY, REVISION, self._task]

    def read(self, progress: ProgressCallback) -> dict[GlueSplitName, list[Example]]:
        """The examples of every split. Raises `UserError`."""
        form = FORMS[self._task]
        instead = (
            f"Without network, unpack GLUE's archive and say where: --set data.glue_folder=/some/folder, which has "
            f"{form.folder}/train.tsv."
        )
        found: dict[GlueSplitName, list[Example]] = {}
        with reachable(self._task, REPOSITORY, instead):
            for split, (name, _) in splits_of(self._task).items():
                progress(f"reading the {name} split of {self._task}", 0, None)
                files = self._open(REPOSITORY, REVISION, f"{self._task}/{name}-*.parquet")
                rows = enumerate(row for _, row in from_place(files, (0, 0)))
                found[split] = [self._example(row, f"row {number:,} of {name}") for number, row in rows]
        return found

    def _example(self, row: Mapping[str, Any], where: str) -> Example:
        """Raises `UserError` where a column is missing or the label cannot be one."""
        columns = FORMS[self._task].columns
        for column in (*columns, "label"):
            if row.get(column) is None:
                raise UserError(f"task: {self._task} on the hub: {where} has no `{column}`")
        label = row["label"]
        is_one = 0 <= label <= MOST_ALIKE if self._classes == 1 else label in range(self._classes)
        if not is_one:
            raise UserError(f"task: {self._task} on the hub: {where} has the label {label!r}, which there is not")
        return _example([str(row[column]) for column in columns], label)


class FolderExamples(GlueSource):
    """A task in a folder of GLUE's archives."""

    def __init__(self, data: GlueData) -> None:
        super().__init__(data)
        assert data.glue_folder is not None
        self._task = data.task
        folder = Path(data.glue_folder).expanduser() / FORMS[self._task].folder
        self._files = {split: folder / f"{name}.tsv" for split, (_, name) in splits_of(self._task).items()}

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """The hashes of the files; where the folder lies does not count. Raises `UserError` with all that are
        missing."""
        folder = next(iter(self._files.values())).parent
        known = KnownHashes(folder.absolute(), f"glue:{self._task}")
        names = ", ".join(f"{folder.name}/{path.name}" for path in self._files.values())
        hint = f"The folder must have {names}, as GLUE's archives do."
        if missing := [str(path) for path in self._files.values() if not path.is_file()]:
            raise UserError(f"glue_folder: for {self._task} there is no {' and no '.join(missing)}", hint)
        hashes = {}
        for split, path in self._files.items():
            progress(f"hashing {path.name}", 0, None)
            hashes[split] = known.of(path, "glue_folder", hint)
        known.save()
        return ["glue-folder", hashes]

    def read(self, progress: ProgressCallback) -> dict[GlueSplitName, list[Example]]:
        """The examples of every split. Raises `UserError`."""
        found: dict[GlueSplitName, list[Example]] = {}
        for split, path in self._files.items():
            progress(f"reading {path.name} of {self._task}", 0, None)
            found[split] = list(_lines(path, FORMS[self._task]))
        return found


def _lines(path: Path, form: Form) -> Iterator[Example]:
    """The examples of a file. Raises `UserError` where it is not of GLUE's form."""
    try:
        lines = read_text(path, _LARGEST).replace("\r\n", "\n").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise _wrong(path, str(error)) from error
    places, begin = _places(path, form, lines[0])
    short = 0
    for number, line in enumerate(lines[begin:], begin + 1):
        columns = line.split("\t")
        if len(columns) <= max(places):
            short += 1
            continue
        *texts, label = (columns[place].strip() for place in places)
        yield _example(texts, _label(label, form, path, number))
    if short > _SHORT_LINES * len(lines):
        raise _wrong(path, f"{short:,} of {len(lines):,} lines have fewer than {max(places) + 1} columns between tabs")


def _places(path: Path, form: Form, first: str) -> tuple[list[int], int]:
    """The columns of texts and label, and the number of lines before the first example."""
    if all(isinstance(column, int) for column in form.tsv):
        return [int(column) for column in form.tsv], 0
    names = [name.strip() for name in first.split("\t")]
    if missing := [str(column) for column in form.tsv if column not in names]:
        raise _wrong(path, f"its first line names no column {' and no '.join(missing)}, but {', '.join(names)}")
    return [names.index(str(column)) for column in form.tsv], 1


def _label(said: str, form: Form, path: Path, line: int) -> float:
    if form.classes is not None:
        if said not in form.classes:
            raise _wrong(path, f"line {line:,} has the label {said!r}, none of {', '.join(form.classes)}")
        return form.classes[said]
    try:
        number = float(said)
    except ValueError:
        number = math.nan
    if not 0 <= number <= MOST_ALIKE:
        raise _wrong(path, f"line {line:,} has the label {said!r}, no number from 0 to {MOST_ALIKE:g}")
    return number


def _example(texts: Sequence[str], label: float) -> Example:
    return Example(texts[0], texts[1] if len(texts) == 2 else None, label)


def _wrong(path: Path, why: str) -> UserError:
    return UserError(
        f"glue_folder: {path}: {why}", "It must be the file of GLUE's archive, UTF-8, tabs between columns."
    )
