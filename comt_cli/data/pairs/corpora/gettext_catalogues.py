"""`gettext:PACKAGE[,PACKAGE]`: the translated messages of installed Python packages.

Catalogues are `LANGUAGE/LC_MESSAGES/*.po` in the package, or `*.mo` if there is no `.po` of that name. For a message
with plural forms the plural is used, with its last form. Fuzzy, untranslated and repeated messages are left out.
Placeholders and tags stay in the texts, line breaks become spaces. Django 5.2 has 671 pairs for Vietnamese.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from comt_cli.data.pairs.almanac_values import babel
from comt_cli.data.pairs.settings import SHARES, Pair, PairCorpus, PairData, PairTexts, split_of_source
from comt_cli.data.storage import ProgressCallback, first_line, hash_files, no_progress, package_folders
from comt_cli.errors import UserError
from comt_cli.files import open_file


class Catalogues(PairCorpus):
    """The messages of packages in one language."""

    pattern = r"gettext:[^,]+(,[^,]+)*"
    said = "gettext:PACKAGE,..."
    keys: ClassVar[Mapping[str, Any]] = SHARES

    def __init__(self, data: PairData) -> None:
        super().__init__(data)
        self._locale = data.target.replace("-", "_")

    @classmethod
    def contradictions(cls, data: PairData) -> Iterator[str]:
        if data.source != "en":
            yield "source: catalogues of gettext are translations of English; use source: en"

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        packages = self.data.corpus.removeprefix("gettext:").split(",")
        return {package: self._catalogues(package) for package in packages}

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        hashes = [[package, hash_files(paths, progress)] for package, paths in self._files.items()]
        return ["gettext", hashes, self.data.validation_fraction, self.data.test_fraction]

    def decoded(self, progress: ProgressCallback = no_progress) -> Mapping[str, PairTexts]:
        found: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
        for pair in self._pairs:
            found[split_of_source(pair[0], self.data)].append(pair)
        return {split: PairTexts.of(found[split]) for split in ("validation", "test")}

    def train(self) -> Iterator[Pair]:
        return self.trained_on(self._pairs)

    def _catalogues(self, package: str) -> list[Path]:
        folders = [folder for place in package_folders(package) for folder in place.rglob("LC_MESSAGES")]
        files = sorted(path for folder in folders if folder.parent.name == self._locale for path in folder.iterdir())
        chosen = [path for path in files if path.suffix == ".po"]
        chosen += [path for path in files if path.suffix == ".mo" and path.with_suffix(".po") not in chosen]
        if not chosen:
            languages = ", ".join(sorted({folder.parent.name for folder in folders})) or "none"
            hint = f"Install it, and give the name by which it is imported. Its languages here: {languages}."
            raise UserError(f"corpus: no installed package {package} has a catalogue in {self._locale}", hint)
        return sorted(chosen)

    @cached_property
    def _pairs(self) -> list[Pair]:
        pairs = (pair for paths in self._files.values() for path in paths for pair in _messages(path, self._locale))
        return list(dict.fromkeys(pairs))


def _messages(path: Path, locale: str) -> Iterator[Pair]:
    po, mo = babel("messages.pofile"), babel("messages.mofile")
    try:
        with open_file(path) as handle:
            catalogue = po.read_po(handle, locale=locale) if path.suffix == ".po" else mo.read_mo(handle)
    # Babel raises ValueError, its own errors, and struct.error, IndexError and others for damaged files.
    except Exception as error:
        raise UserError(f"corpus: cannot read the catalogue {path}: {first_line(error)}") from error
    for message in catalogue:
        source, target = (each[-1] if isinstance(each, list | tuple) else each for each in (message.id, message.string))
        if source and target and not message.fuzzy:
            yield " ".join(str(source).split()), " ".join(str(target).split())
