"""WikiText-103: its lines as articles, from parquet files as the hub has them and from a folder, with one content."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_corpus import prepared, sentences

from comt_cli.data.hub import stream_files
from comt_cli.data.prepare import fingerprint, prepare
from comt_cli.data.text.corpora import wikitext
from comt_cli.data.text.settings import DataSettings, MaskedData
from comt_cli.errors import UserError

LINES = ["", " = A = ", "", " of a ", "", " = = Part = = ", "", " more ", " = 2 = ", "", " = Bee Hive = ", "", " of b "]


def test_a_title_behind_an_empty_line_begins_an_article() -> None:
    found = ["= A =\nof a\n= = Part = =\nmore\n= 2 =", "= Bee Hive =\nof b"]
    assert [*wikitext.articles(LINES)] == found
    assert next(wikitext.articles(LINES[3:])).startswith("of a")
    assert [*wikitext.articles([])] == []


def lines(split: str) -> list[str]:
    """Twenty articles."""
    return [line for n, each in enumerate(sentences(20)) for line in ("", f" = {split} {n} = ", "", f" {each} ")]


def test_the_hub_and_a_folder_have_one_content(cache: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for split, name in wikitext.IN_FOLDER.items():
        (tmp_path / name).write_text("\n".join(lines(split)) + "\n", encoding="utf-8")
        rows = [{"text": f"{line}\n" if line else ""} for line in lines(split)]
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / f"{split}-0.parquet")
    data = DataSettings(corpus="wikitext-103", tokenizer="bytes", sequence_length=16)

    def open_source(source):
        return stream_files(str(tmp_path / f"{source.split}-*.parquet"))

    hub = prepared(data, wikitext.WikiText(open_source))
    folder = data.model_copy(update={"folder": str(tmp_path)})
    local = prepare(folder)
    assert hub.content_hash == local.content_hash
    assert (local.train.documents, local.validation.documents) == (20, 20)
    assert fingerprint(data) != fingerprint(folder)
    (tmp_path / "wiki.train.raw").unlink()
    with pytest.raises(UserError, match=r"folder: cannot read .*wiki\.train\.raw"):
        fingerprint(folder)


def test_without_network_it_names_the_folder() -> None:
    def open_source(source):
        raise ConnectionError("no route")

    (stream, _) = wikitext.WikiText(open_source).streams()
    with pytest.raises(UserError, match="cannot read wikitext-103") as refused:
        next(stream.documents())
    assert "data.folder=/some/folder (--set is not for the runs that others start from)" in str(refused.value.hint)


@pytest.mark.parametrize("kind", [DataSettings, MaskedData])
def test_what_cannot_be_meant_is_refused(kind) -> None:
    with pytest.raises(ValueError, match="folder: this is a key of wikitext-103"):
        kind(tokenizer="bytes", folder="here")
    with pytest.raises(ValueError, match="validation_fraction: this corpus has a validation split of its own"):
        kind(corpus="wikitext-103", tokenizer="bytes", validation_fraction=0.1)
    with pytest.raises(ValueError, match="tokenizer"):
        MaskedData(tokenizer="t5")
