"""The examples of a task, opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from comt_cli.data.glue.batches import GlueSplit
from comt_cli.data.glue.corpus import Example
from comt_cli.data.glue.settings import GlueData
from comt_cli.data.prepared import PreparedTokens
from comt_cli.files import read_json

if TYPE_CHECKING:
    from comt_cli.data.glue.prepare import GlueManifest


class GlueDataset(PreparedTokens[GlueSplit]):
    """The examples of a task: the validation split is the part of the training examples that is held out, the test
    split of GLUE's own tasks their development set, since the labels of their test sets are secret.

    Attributes:
        examples: the texts and labels of "train", "validation", "test" and, of mnli, "unseen", its mismatched set.
    """

    def __init__(self, data: GlueData, folder: Path, manifest: GlueManifest) -> None:
        super().__init__(folder, manifest)
        self._data = data
        self.examples: Mapping[str, Sequence[Example]] = {
            split: [Example(*each) for each in read_json(folder / f"{split}.json", largest=1 << 32)]
            for split in manifest.examples
        }

    @cached_property
    def unseen(self) -> GlueSplit | None:
        """Texts of other kinds than those of training; only mnli has them."""
        return self.split("unseen") if "unseen" in self.examples else None

    def split(self, name: str) -> GlueSplit:
        return GlueSplit(self.examples[name], self.tokenizer, self._data.classes, self._data.sequence_length)
