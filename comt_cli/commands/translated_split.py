"""The translations that a finished run wrote of its test set, the references, and what needs no network. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from comt_cli.data.pairs.nearest import nearest_translations
from comt_cli.data.pairs.settings import PairTexts, corpus_for
from comt_cli.data.prepare import prepare
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.errors import UserError
from comt_cli.recipe.problems import nearest
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.scoring.files import read_aligned, refuse
from comt_cli.tasks.settings.translation import TranslationSettings


@dataclass(frozen=True)
class TranslatedSplit:
    """One split of a run's data as the run translated it with the weights that it ended with."""

    folder: Path
    spec: RunSpec
    split: str
    progress: ProgressCallback = no_progress

    @classmethod
    def of(cls, folder: Path, split: str, progress: ProgressCallback = no_progress) -> TranslatedSplit:
        """Raises `UserError` where the folder is no run of a translator, or its data has no such split."""
        spec = RunDirectory(folder).spec()
        if not isinstance(spec.settings, TranslationSettings):
            raise UserError(
                f"{folder} is a run of comt {spec.task.command}, which translates nothing",
                "Give a run of comt train-mt, or files of translations and of references.",
            )
        found = cls(folder, spec, split, progress)
        if split not in found.splits:
            data = spec.task.data_name(spec.settings)
            raise UserError(f"--split: {data} has no split {split!r}: {nearest(split, found.splits)}")
        return found

    @cached_property
    def hypotheses(self) -> list[str]:
        """Its translations, in the order of the pairs. Raises `UserError` where it has not translated the split."""
        path = self.folder / "outputs" / "final" / f"{self.split}.txt"
        if not path.is_file():
            raise UserError(
                f"{self.folder} has not translated its {self.split} split yet", "A run does so when it is trained."
            )
        texts, problems = read_aligned([path])
        refuse(problems)
        return texts[0]

    @cached_property
    def splits(self) -> Mapping[str, PairTexts]:
        """The texts of every split that is decoded, prepared anew where they are not in the cache. Raises `UserError`
        where they are not those of the run."""
        dataset = prepare(self.spec.settings_as(TranslationSettings).data, self.progress)
        if dataset.content_hash != self.spec.data_content:
            name = self.spec.task.data_name(self.spec.settings)
            raise UserError(
                f"{name} is not the data any more that {self.folder} was trained on",
                "Its translations can be scored as files: comt score HYP REF.",
            )
        texts: Mapping[str, PairTexts] = dataset.texts
        return texts

    @property
    def references(self) -> list[str]:
        """The references, as the run's own scores have them."""
        return list(self.splits[self.split].references)

    def baseline(self, name: str) -> Sequence[str]:
        """What one of `BASELINES` makes of the sources."""
        return BASELINES[name](self)

    def is_like(self, other: TranslatedSplit) -> bool:
        """Whether both translated the same sentences, with the same references."""
        mine, others = self.splits[self.split], other.splits[self.split]
        return mine.sources == others.sources and mine.references == others.references


def _copied(split: TranslatedSplit) -> Sequence[str]:
    return split.splits[split.split].sources


def _nearest(split: TranslatedSplit) -> list[str]:
    pairs = list(corpus_for(split.spec.settings_as(TranslationSettings).data).train())
    sources, targets = ([getattr(pair, side) for pair in pairs] for side in ("source", "target"))
    return nearest_translations(sources, targets, _copied(split))


BASELINES: Mapping[str, Callable[[TranslatedSplit], Sequence[str]]] = {"copy": _copied, "nearest": _nearest}
"""Translations without a network: the source itself; the target of the training sentence whose source is nearest."""
