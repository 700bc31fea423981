"""Settings and fixtures that all tests share."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import signal
from collections.abc import Iterator
from typing import Any

import isolation

_MADE = isolation.isolate()  # before torch, matplotlib and the others read where their caches are

import pytest
import torch
import typer.testing
from hypothesis import settings

# Triton decides when it is imported whether it compiles kernels or interprets them: without a GPU, the latter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
# Where this is not said, Triton 3.9 warns, and warnings are errors here; 1 is what it does anyway.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import comt_cli.recipe.problems
import comt_cli.training.devices

_parse, _parsed = comt_cli.recipe.problems.parse, {}


@functools.wraps(_parse)
def parsed_once(text: str) -> Any:
    """A text is parsed once in a session. Each caller gets a copy."""
    if text not in _parsed:
        _parsed[text] = pickle.dumps(_parse(text))
    return pickle.loads(_parsed[text])


# Before anything imports `parse` by its name: hundreds of commands read the same few dozen shipped recipes.
comt_cli.recipe.problems.parse = parsed_once

# A thousand tests invoke the command line, and each would build all its commands anew, which takes 40 ms.
typer.testing._get_command = functools.cache(typer.testing._get_command)

# To say how long runs will take, a product is timed for a fifth of a second: here once.
comt_cli.training.devices.MATMUL_SECONDS = 1e-9

# Rarely: a full collection of garbage goes through all of torch and some thousand tests, a fifth of a second each time;
# it took a seventh of the processor's time. Tests about what is left behind collect by themselves.
gc.set_threshold(20_000, 20, 20)

# Few examples, and the same ones every time: the suite stays quick, and a failure can be seen again.
settings.register_profile("comt", max_examples=25, deadline=None, derandomize=True, database=None)
settings.load_profile("comt")


def pytest_configure(config: pytest.Config) -> None:
    """Warnings are errors, but for those that are not about this program. Tests close terminals: under nohup the signal
    would be ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for rule in isolation.ignored_warnings():
        config.addinivalue_line("filterwarnings", rule)


def pytest_markeval_namespace() -> dict[str, Any]:
    """Conditions that are texts are evaluated before their test: the C++ kernels are compiled for the first that needs
    them, and not when tests are collected."""
    from comt_cli.kernels.cpu import build

    return {"build": build}


def pytest_collection_finish() -> None:
    """What is there before the first test stays: collecting garbage need not go through it again. Runs and benchmarks
    do so by themselves, and it took them a third of a second each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """The folders go with the session that made them."""
    isolation.remove(_MADE)


@pytest.fixture(scope="session", autouse=True)
def nothing_of_the_users() -> Iterator[None]:
    """Tests stand in a folder of the suite's: what one writes to a path that is relative ends there."""
    before = os.getcwd()
    os.chdir(isolation.working_folder())
    yield
    os.chdir(before)


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which kernels are chosen must not depend on what was last measured: where a test does not say, the reference."""
    from comt_cli.kernels import measurements

    monkeypatch.setattr(measurements, "roots", list)


@pytest.fixture
def quick_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn and laid out as ever; in place of their pixels, and of a PDF with its fonts, which take most of
    a figure's time, their texts and the points of their lines are written.

    What the files of a figure are is what test_figures.py shows.
    """
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    from comt_cli.report import figures

    def shown(figure: Any) -> bytes:
        figure.draw_without_rendering()
        texts = [text.get_text() for text in figure.findobj(Text)]
        points = [line.get_xydata().tolist() for line in figure.findobj(Line2D)]
        return b"\x89PNG" + repr((texts, points)).encode()

    monkeypatch.setattr(figures, "_png", shown)
    monkeypatch.setattr(figures, "_pdf", lambda figure: b"%PDF")
