"""GLUE's own tasks from files of the form of the hub's and of GLUE's archives, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest
from kinds import fingerprint
from pyarrow import parquet

from comt_cli.data import hub
from comt_cli.data.glue.settings import Example, GlueData
from comt_cli.data.glue.sources.published import FORMS, Published, splits_of
from comt_cli.data.prepare import prepare
from comt_cli.data.storage import no_progress
from comt_cli.errors import UserError

CORPUS = f"files:{__file__}"
COUNT = 60

ENTAILED = ["entailment", "not_entailment"]
STS = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
MNLI = "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label"
TASKS = {  # the first line of a file, if any; the others; what the classes are called
    "cola": ("", "gj04\t{label}\t*\t{one}", ["0", "1"]),
    "sst2": ("sentence\tlabel", "{one} \t{label}", ["0", "1"]),
    "mrpc": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{label}\t1\t2\t{one}\t{two}", ["0", "1"]),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\t3\t{one}\t{two}\t{label}", ["0", "1"]),
    "stsb": (STS, "0\tnews\tfile\t2012\t1\tnone\tnone\t{one}\t{two}\t{label}", None),
    "mnli": (MNLI, "0\t1\t1n\tfiction\t{one}\t{two}\tneutral\t{label}", ["entailment", "neutral", "contradiction"]),
    "qnli": ("index\tquestion\tsentence\tlabel", "0\t{one}\t{two}\t{label}", ENTAILED),
    "rte": ("index\tsentence1\tsentence2\tlabel", "0\t{one}\t{two}\t{label}", ENTAILED),
    "wnli": ("index\tsentence1\tsentence2\tlabel", "0\t{one}\t{two}\t{label}", ["0", "1"]),
}


def examples(task, split):
    classes = GlueData(task=task, tokenizer="bytes").classes
    pairs = len(FORMS[task].columns) == 2
    return [
        Example(f'the "{split} {n}', f"other {n}'" if pairs else None, n % 26 / 5 if classes == 1 else n % classes)
        for n in range(COUNT)
    ]


def of_folder(task, folder):
    return GlueData(task=task, corpus=CORPUS, tokenizer="bytes", glue_folder=str(folder))


def write_folder(task, root):
    """The files of GLUE's archive of a task; the last written is returned."""
    folder = root / FORMS[task].folder
    folder.mkdir()
    header, form, classes = TASKS[task]
    for split, (_, name) in splits_of(task).items():
        lines = [header] if header else []
        for each in examples(task, split):
            label = classes[int(each.label)] if classes else each.label
            lines.append(form.format(one=each.first, two=each.second, label=label))
        (folder / f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder / f"{name}.tsv"


class Parquet:
    """Local parquet files in the form of the hub's, two of training."""

    def __init__(self, folder, task):
        self.folder, self.asked = folder, list[tuple[str, str, str]]()
        columns = (*FORMS[task].columns, "label")
        for split, (name, _) in splits_of(task).items():
            rows = [
                {"idx": n} | dict(zip(columns, [text for text in each if text is not None], strict=True))
                for n, each in enumerate(examples(task, split))
            ]
            halves = [rows[:25], rows[25:]] if split == "train" else [rows]
            for number, half in enumerate(halves):
                self.write(f"{name}-{number:05}-of-{len(halves):05}.parquet", half)

    def write(self, name, rows):
        parquet.write_table(pyarrow.Table.from_pylist(rows), self.folder / name)

    def __call__(self, repository, revision, pattern):
        self.asked.append((repository, revision, pattern))
        return hub.stream_files(str(self.folder / Path(pattern).name))


@pytest.mark.parametrize("task", TASKS)
def test_a_folder_and_the_hub_have_the_same_examples(task, cache, tmp_path, monkeypatch):
    expected = {split: examples(task, split) for split in splits_of(task)}
    files = Parquet(tmp_path, task)
    monkeypatch.setattr(hub, "open_files", files)
    assert Published(GlueData(task=task, tokenizer="bytes")).read(no_progress) == expected
    commit = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
    assert files.asked[0] == ("nyu-mll/glue", commit, f"{task}/train-*.parquet")
    write_folder(task, tmp_path)
    assert Published(of_folder(task, tmp_path)).read(no_progress) == expected


def test_where_the_files_lie_does_not_count(cache, tmp_path, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        changed = write_folder("stsb", tmp_path / name)
    here, there = (of_folder("stsb", tmp_path / name) for name in ("here", "there"))
    dataset = prepare(here)
    assert dataset.train.targets.dtype == "float32"
    assert fingerprint(here) == fingerprint(there) == dataset.fingerprint
    on_hub = GlueData(task="stsb", corpus=CORPUS, tokenizer="bytes")
    assert fingerprint(on_hub) != dataset.fingerprint
    monkeypatch.setattr(hub, "open_files", Parquet(tmp_path, "stsb"))
    assert prepare(on_hub).content_hash == dataset.content_hash
    changed.write_text(changed.read_text(encoding="utf-8").replace("test 1", "tent 1"), encoding="utf-8")
    assert fingerprint(there) != dataset.fingerprint


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("\t1\n", "\tyes\n", r"dev.tsv: line 3 has the label 'yes', not one of 0, 1"),
        ("question2", "question", r"dev.tsv: its first line has no column question2; it has id, qid1, qid2, question1"),
        ("\t1\n", "\n", r"dev.tsv: 30 of 61 lines have fewer than 6 columns between tabs"),
        ("test 7", "caf\udce9", r"dev.tsv: it is not UTF-8 text \(line 9\)"),
    ],
)
def test_files_of_another_form_are_refused(cache, tmp_path, old, new, wrong):
    path = write_folder("qqp", tmp_path)
    text = path.read_text(encoding="utf-8").replace(old, new)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=f"glue_folder: .*{wrong}") as caught:
        prepare(of_folder("qqp", tmp_path))
    assert caught.value.exit_status == 2
    assert "GLUE's archive" in str(caught.value.hint)


def test_labels_of_sts_b_are_numbers(cache, tmp_path):
    path = write_folder("stsb", tmp_path)
    whole = path.read_text(encoding="utf-8")
    for label in ("six", "5.2", "-1", "nan"):
        path.write_text(whole.replace("\t3.0\n", f"\t{label}\n"), encoding="utf-8")
        with pytest.raises(UserError, match=rf"line 17 has the label '{label}', not a number from 0 to 5"):
            prepare(of_folder("stsb", tmp_path))
