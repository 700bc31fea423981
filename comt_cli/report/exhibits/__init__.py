"""Exhibits of runs, one file each: tables, and their figures. Files in this folder are discovered."""

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
    """An exhibit of a frame of runs: its numbers, its sentences, and its figure if it has one. The writer
    (`report.write`) makes the files `<table>-<name>.*`: a CSV with this number of significant `digits`; for a table a
    page and LaTeX, for a figure PNG, PDF and caption.

    `of` is the frame that it is made from, and so the time when it is written: the runs of every table, those of a
    sweep (`sweep.sweep_frame`), or those that a command selects.
    """

    name: str
    of: ClassVar[Input] = "table"
    digits: ClassVar[int] = 6

    @classmethod
    def all_of(cls, info: TableInfo) -> list[Exhibit]:  # noqa: ARG003 - of most kinds there is one
        """The exhibits of this kind for a table: one."""
        return [cls()]

    @abstractmethod
    def frame(self, runs: pd.DataFrame) -> pd.DataFrame:
        """One record per line: the CSV. Empty if there is nothing to show yet.

        `attrs["title"]` and `attrs["trained"]` begin the caption of a figure.
        """

    @abstractmethod
    def sentences(self, frame: pd.DataFrame) -> list[str]:
        """The sentences on how to read it, and on the main numbers."""

    def draw(self, frame: pd.DataFrame) -> Figure | None:
        """The figure; None for a table."""
        return None

    def page(self, frame: pd.DataFrame) -> str | None:
        """The Markdown page of a table; None for a figure."""
        return None

    def latex(self, frame: pd.DataFrame) -> str | None:
        """The LaTeX of a table; None for a figure, whose caption is LaTeX."""
        return None

    def csv(self, frame: pd.DataFrame) -> str:
        """The numbers of a frame."""
        return frame_csv(frame.astype(object).where(frame.notna(), None), digits=self.digits)

    def caption(self, frame: pd.DataFrame) -> Caption:
        """Title, networks and sentences."""
        return Caption(frame.attrs["title"], frame.attrs["trained"], tuple(self.sentences(frame)))


@cache
def exhibits() -> tuple[type[Exhibit], ...]:
    """Every kind of exhibit, sorted by file name. Imports no matplotlib."""
    modules = [importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
    found = ((module, value) for module in modules for value in vars(module).values() if inspect.isclass(value))
    return tuple(value for module, value in found
                 if issubclass(value, Exhibit) and value.__module__ == module.__name__)  # fmt: skip
