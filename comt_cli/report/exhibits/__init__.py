"""Exhibits of runs, one file each: tables, and the figures beside them. A file put here is found."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from comt_cli.report.caption import Caption
from comt_cli.report.frame import TableInfo, frame_csv

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Input = Literal["table", "sweep", "command"]


class Exhibit(ABC):
    """An exhibit of a frame of runs: its numbers, its sentences, and its figure where it has one. A subclass in a file
    of this folder is found. The writer (`report.write`) makes the files `<table>-<name>.*` of it: CSV of so many
    significant `digits`, a page and LaTeX where it is a table, and else PNG, PDF and caption.

    `of` says which frame it is made from, and so when it is written: the runs of every table, those of a sweep
    (`sweep.sweep_frame`), or those that a command of its own selects.
    """

    name: str
    of: ClassVar[Input] = "table"
    digits: ClassVar[int] = 6

    @classmethod
    def all_of(cls, info: TableInfo) -> list[Exhibit]:  # noqa: ARG003 - of most kinds there is one
        """The exhibits of this kind that a table has: one."""
        return [cls()]

    @abstractmethod
    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        """One record a line: the CSV. Empty where there is nothing to show yet.

        `attrs["title"]` and `attrs["trained"]` begin the caption of a figure."""

    @abstractmethod
    def sentences(self, frame: pd.DataFrame) -> list[str]:
        """The sentences on how to read it, and on what the numbers come to."""

    def draw(self, frame: pd.DataFrame) -> Figure | None:
        """The figure; None of a table."""
        return None

    def page(self, frame: pd.DataFrame) -> str | None:
        """The Markdown page of a table; None of a figure."""
        return None

    def latex(self, frame: pd.DataFrame) -> str | None:
        """The LaTeX of a table; None of a figure, whose caption is LaTeX."""
        return None

    def csv(self, frame: pd.DataFrame) -> str:
        """The numbers of a frame."""
        return frame_csv(frame.astype(object).where(frame.notna(), None), digits=self.digits)

    def caption(self, frame: pd.DataFrame) -> Caption:
        """Title, what was trained, and the sentences."""
        return Caption(frame.attrs["title"], frame.attrs["trained"], tuple(self.sentences(frame)))


@cache
def exhibits() -> tuple[type[Exhibit], ...]:
    """Every kind of exhibit, in the order of the names of their files. Imports no matplotlib."""
    modules = [importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
    found = ((module, value) for module in modules for value in vars(module).values() if inspect.isclass(value))
    return tuple(value for module, value in found
                 if issubclass(value, Exhibit) and value.__module__ == module.__name__)  # fmt: skip
