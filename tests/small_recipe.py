"""A small recipe that is right, for tests that break or change it."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from comt_cli.methods import catalogue
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.recipe.problems import RecipeError
from comt_cli.recipe.schema import Catalogue

SMALL = """\
title: A small table
paper: mine
table: table1
command: train-lm
baseline: plain
seeds: [1, 2]
settings:
  data: {vocabulary: 300}
  train:
    steps: 100
    warmup_steps: 10
    batch_size: 8
rows:
  plain:
    method: pre-ln
    paper: {c4/130m: 20.5, c4/250m: null}
  gated:
    method:
      name: comt
      hidden: 4
    paper:
      c4/130m: 19.5
      c4/250m: 18.5
  extra:
    method: mix-ln
    in_paper: false
columns:
  c4/130m: {}
  c4/250m:
    settings:
      model: {size: 250m}
scales:
  smoke:
    description: quick
    seeds: [7]
    columns:
      tiny:
        compare_to: c4/130m
        settings:
          model: {size: tiny}
          train: {batch_size: 4}
  paper:
    description: as published
"""


@pytest.fixture
def small() -> str:
    """The text of a recipe that is right."""
    return SMALL


def load_recipe_text(text: str, catalogue: Catalogue, *given: Any, **options: Any) -> LoadedRecipe:
    """`load_recipe` of a file `recipe` with this text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe"
        path.write_text(text, encoding="utf-8")
        return load_recipe(path, catalogue, *given, **options)


@pytest.fixture
def load() -> Callable[..., LoadedRecipe]:
    """`load(text, *overrides, scale=None)` with all methods."""

    def load_text(text: str, *overrides: str, scale: str | None = None) -> LoadedRecipe:
        return load_recipe_text(text, catalogue(), overrides, scale)

    return load_text


@functools.cache
def shipped(name: str) -> LoadedRecipe:
    """A recipe that comes with the program, read once."""
    return load_recipe(Path(__file__).parents[1] / f"recipes/{name}.yaml", catalogue())


def problems_of(text: str, load: Callable[..., LoadedRecipe], *overrides: str) -> list[str]:
    """Everything that is wrong with a recipe, as a user reads it."""
    with pytest.raises(RecipeError) as caught:
        load(text, *overrides)
    error = caught.value
    assert error.exit_status == 2
    assert str(error).splitlines()[1:] == [f"  {problem}" for problem in error.problems]
    return [str(problem) for problem in error.problems]


def assert_only_problem(right: str, old: str, new: str, expected: str, load: Callable[..., LoadedRecipe]) -> None:
    """`right` with `new` for `old` has one problem, at the line and key of `expected`, which proposes the name after
    `->`, where there is one. What a setting lacks is reported for every column that needs it, and counts once."""
    assert old in right
    found = problems_of(right.replace(old, new, 1), load)
    place, _, nearest = expected.partition(" -> ")
    (there,) = [problem for problem in found if problem.startswith(f"{place}: ") or problem == place]
    assert not nearest or f"did you mean {nearest}?" in there
    assert len({re.sub(r"^line \d+: |\(needed by \S+\)", "", problem) for problem in found}) == 1
