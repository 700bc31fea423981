"""Every recipe that comes with the program, at every scale, against what the papers print."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest
from planning_on import plan_on
from small_recipe import shipped

from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.methods import catalogue, methods
from comt_cli.recipe.load import available_recipes, load_recipe
from comt_cli.recipe.schema import AblationName
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.images import ImageSettings, ImageTrainSettings

ROOT = Path(__file__).parents[3]
RECIPES = [name for name in available_recipes() if (ROOT / f"recipes/{name}.yaml").is_file()]
CELLS = list(csv.DictReader((ROOT / "tests/data/paper_cells.csv").read_text().splitlines()))
SMOKE_RUNS = 70
"""So many runs of a language model at scale smoke, trained once each, fit into a quarter of an hour on two cores."""
OURS = {
    *("cost", "evening-images", "evening-study", "evening-tokens", "precision", "equal-time-comt"),
    *("equal-time-transponder", "gate-start", "ladder", "modern", "table3-tuned", "table3-cost"),
    *("table5-cross-entropy", "start", "bert", "glue"),
}
"""Tables without a published value, or none that is known."""
BESIDE = {"table1-standard": "table1", **{f"table{n}-normal": f"table{n}" for n in (4, 5, 6)}}
"""Tables of ours that stand beside the values of a published one."""
OFFLINE = {
    *("python-docs", "python-source", "glyphs10", "glyphs100", "almanac", "scenes"),
    *("acceptability", "follows", "scene-nli", "scene-similarity"),
}
"""Data that is made here."""


def of_command(command: str) -> list[str]:
    """The recipes of the papers' tables and figures; studies of ours have scales of their own."""
    return [name for name in RECIPES if shipped(name).recipe.command == command and not name.startswith("ours/")]


def runs_of(name: str, scale: str) -> list[RunSpec]:
    return plan_on(shipped(name), scale, lambda settings: (settings.data.model_dump_json(),) * 2)


def ids(names: Iterable[str], scale: str) -> set[str]:
    return {run.id for name in names for run in runs_of(name, scale)}


def of_cells(name: str, scale: str) -> dict[tuple[str, str], set[str]]:
    """The ids of every cell."""
    found: dict[tuple[str, str], set[str]] = {}
    for run in runs_of(name, scale):
        found.setdefault((run.row, run.column), set()).add(run.id)
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_stands_where_it_says_and_has_the_papers_cells(name):
    loaded = shipped(name)
    recipe, text = loaded.recipe, loaded.path.read_text()
    assert f"{recipe.paper}/{recipe.table}" == name
    called = f"{recipe.table}.yaml" if recipe.paper == "comt" else name
    assert f"comt {recipe.command} --recipe {called} " in text  # how to run it
    assert (recipe.figure is not None) == recipe.table.startswith("figure")
    for row in recipe.rows:  # of a method that is only like the published one ("EAU-like") its name says so
        described = sys.modules[methods()[loaded.methods[row]["name"]].__module__].__doc__
        assert all(word.lower() in row for word in re.findall(r"\w+-like", described.splitlines()[0])), row
    cells = [cell for cell in CELLS if cell["paper"] == recipe.paper]
    own = {cell["source"] for cell in cells if cell["table"] == recipe.table}
    comment = re.sub(r"\n# ?", " ", text.partition("\n\n")[0])
    assert ("values are second-hand" in comment) == ("second-hand" in own)
    ours = {
        (row, column): (value, entry.paper_increase.get(column, ""))
        for row, entry in recipe.rows.items()
        for column, value in entry.paper.items()
        if value is not None
    }
    theirs = {
        (cell["row"], cell["column"]): (float(cell["value"]), cell["param_increase"])
        for cell in cells
        if cell["table"] == BESIDE.get(recipe.table, recipe.table)
        and cell["metric"] in (recipe.metric, recipe.columns[cell["column"]].metric)
    }
    assert ours == theirs
    assert bool(theirs) == (recipe.figure is None and recipe.table not in OURS)
    assert {(row, column) for row, entry in recipe.rows.items() for column in entry.paper_increase} <= set(theirs)


def test_every_cell_of_the_papers_has_a_recipe():
    recipes = [shipped(name).recipe for name in RECIPES]
    assert {f"{cell['paper']}/{cell['table']}" for cell in CELLS} == {
        f"{recipe.paper}/{recipe.table}"
        for recipe in recipes
        if recipe.figure is None and recipe.table not in {*BESIDE, *OURS}
    }
    assert len(CELLS) == 161 + 81 + 14 + 16  # of language models, image classifiers, translators and captioners
    assert {method["name"] for name in RECIPES for method in shipped(name).methods.values()} == set(methods())
    assert {ablation for recipe in recipes for ablation in recipe.ablations} == {*get_args(AblationName)}


@pytest.mark.parametrize("name", RECIPES)
def test_every_scale_can_be_planned_and_its_steps_overridden_alone(name):
    loaded = shipped(name)
    scales = set(loaded.recipe.scales)
    assert scales - {"evening"} == {"smoke", "small", "paper"} or scales == {"evening"}
    for scale in scales:
        runs = runs_of(name, scale)
        seeds = loaded.recipe.scales[scale].seeds or loaded.recipe.seeds
        points = len(loaded.grids[scale].points) if scale in loaded.grids else 1
        a_cell = len(seeds) * points
        if loaded.has_trials(scale):  # and what these choose is not known yet
            a_cell = len(seeds) + len(loaded.grids[scale].seeds) * points
        assert len(runs) == len(loaded.recipe.rows) * len(loaded.columns(scale)) * a_cell
        assert len({run.relative_path for run in runs}) == len(runs)
        assert all(loaded.compared_column(scale, run.column) in loaded.recipe.columns for run in runs)
        if scale != "paper":
            assert {loaded.task.data_name(run.settings).partition(" ")[0] for run in runs} <= OFFLINE
            short = load_recipe(loaded.path, catalogue(), ["train.steps=10"], scale).settings[scale]
            assert {settings.train.steps for settings in short.values()} == {10}


@pytest.mark.parametrize(
    ("scale", "column"),
    [("smoke", "python-docs/tiny"), ("evening", "python-docs/tiny"), ("small", "python-source/60m")],
)
def test_a_scale_is_the_same_in_every_recipe_of_a_language_model(scale, column):
    """So that a row which recurs is trained once."""
    having = [shipped(name) for name in of_command("train-lm") if scale in shipped(name).recipe.scales]
    different = {settings.model_dump_json() for loaded in having for settings in loaded.settings[scale].values()}
    assert len(different) == 1
    assert {name for loaded in having for name in loaded.columns(scale)} == {column}


def test_all_smoke_runs_of_language_models_together_are_few():
    names = of_command("train-lm")
    runs = [run for name in names for run in runs_of(name, "smoke")]
    distinct = {run.id for run in runs}
    assert len(distinct) <= SMOKE_RUNS
    assert len(runs) > len(distinct) + 20  # baselines and the methods themselves recur
    assert {run.seed for run in runs} == {1}


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_figures_cost_nothing(scale):
    tables = ids(("comt/table1", "comt/table3", "sas/table4", "transponder/table2"), scale)
    if scale == "smoke":
        tables = ids((name for name in RECIPES if "/table" in name), scale)
    figures = [name for name in RECIPES if shipped(name).recipe.figure]
    assert len(figures) == 7
    assert ids(figures, scale) <= tables


WHOLE_STEPS = {
    ("smoke", "comt/table3"): (480, 48, None),
    ("small", "comt/table3"): (240, 24, None),
    ("smoke", "transponder/table2"): (480, 48, None),
    ("smoke", "comt/table1"): (500, 100, ()),
    ("small", "comt/table2"): (2000, 22, ()),
    ("smoke", "sas/table4"): (600, 100, (300, 450)),
    ("small", "sas/table4"): (2000, 40, (1000, 1500)),
    ("paper", "sas/table4"): (64000, 400, (32000, 48000)),
}
"""Steps, warm-up and milestones of shipped recipes before their setups had shares: these are in the runs' ids."""


@pytest.mark.parametrize(("scale", "name"), WHOLE_STEPS)
def test_shipped_setups_come_to_the_steps_that_their_ids_were_made_of(scale, name):
    for settings in shipped(name).settings[scale].values():
        train = settings.train
        assert (train.steps, train.warmup_steps, getattr(train, "milestones", None)) == WHOLE_STEPS[scale, name]


STEPS = {"60m": 10_000, "130m": 20_000, "250m": 40_000, "350m": 60_000, "1b": 100_000}
RATES = {
    "comt": {"c4/60m": 1e-3, "c4/130m": 1e-3, "c4/250m": 1e-3, "c4/350m": 1e-3, "c4/1b": 5e-4},
    "transponder": {"c4/60m": 3e-3, "c4/130m": 1e-3, "c4/250m": 1e-3}
    | dict.fromkeys(("openwebtext/60m", "openwebtext/130m", "openwebtext/250m"), 3e-3),
}


@pytest.mark.parametrize("name", of_command("train-lm"))
def test_the_scale_paper_of_language_models_is_what_the_papers_ran(name):
    paper = name.partition("/")[0]
    for (_, column), settings in shipped(name).settings["paper"].items():
        corpus, size = column.split("/")
        model, data, train = settings.model, settings.data, settings.train
        assert model.size == size
        assert (data.corpus, data.tokenizer, data.rows, data.sequence_length) == (corpus, "t5", "pad", 256)
        assert (train.steps, train.warmup_steps) == (STEPS[size], STEPS[size] // 10)
        assert train.learning_rate == RATES[paper][column]
        assert train.schedule == {"comt": "cosine", "transponder": "noam"}[paper]
        assert train.min_lr_ratio == {"comt": 0.1, "transponder": None}[paper]
        adam = (train.optimizer, train.beta1, train.beta2, train.epsilon, train.weight_decay, train.gradient_clipping)
        assert adam == ("adam", 0.9, 0.999, 1e-8, 0, 0)
        assert (train.batch_size, train.precision, train.evaluation_tokens) == (512, "bf16-pure", 10_000_000)
        rows_read = min(train.steps * train.batch_size, 8_000_000)  # OpenWebText has so many
        assert data.max_train_tokens >= rows_read * 200  # a row holds so many
        assert (train.sharding == "fsdp") == (size == "1b")


def learning(train: ImageTrainSettings) -> tuple:
    return (
        train.steps, train.batch_size, train.learning_rate, train.schedule, train.milestones, train.min_lr_ratio,
        train.warmup_steps, train.warmup_learning_rate, train.momentum, train.nesterov, train.weight_decay,
        train.gradient_clipping,
    )  # fmt: skip


CIFAR_EPOCHS, IMAGENET_EPOCHS = 50_000 * 100, 1_281_167 * 90
CIFAR = (CIFAR_EPOCHS // 64, 64, 0.01, "linear", (), 0.01, 0, None, 0.9, False, 0, 0)
SAS = (64_000, 128, 0.1, "step", (32_000, 48_000), None, 400, 0.01, 0.9, False, 2e-4, 0)
PAPER = {
    "comt/table1": CIFAR,
    "comt/tableA7": CIFAR,
    "comt/figure3": CIFAR,
    "comt/table2": (IMAGENET_EPOCHS // 512, 512, 0.1, "cosine", (), 0.01, 1_281_167 // 512, None, 0.9, False, 0, 0),
    "comt/table1-standard": (2 * CIFAR_EPOCHS // 128, 128, 0.1, "cosine", (), 0, 0, None, 0.9, True, 5e-4, 0),
} | dict.fromkeys(("sas/table4", "sas/table6", "sas/table7", "sas/start", "sas/figure3", "sas/figure4"), SAS)


@pytest.mark.parametrize("name", of_command("train-resnet"))
def test_the_scale_paper_of_image_classifiers_is_what_the_papers_ran(name):
    loaded = shipped(name)
    for (_, column), settings in loaded.settings["paper"].items():
        assert isinstance(settings, ImageSettings)
        images, size = column.split("/")
        assert (settings.model.size, settings.model.width, settings.model.blocks) == (size, None, None)
        assert settings.model.stem == ("7x7" if images == "imagenet" else "3x3")
        augmentation, pixels = ("resized-crop-flip", 224) if images == "imagenet" else ("crop-flip", 32)
        assert settings.data == ImageDataSettings(images=images, size=pixels, augmentation=augmentation)  # all images
        assert learning(settings.train) == PAPER[name]
    for scale in loaded.recipe.scales.keys() - {"paper"}:
        for (_, column), settings in loaded.settings[scale].items():
            assert f"{settings.data.images}/{settings.model.size}" == column
            compared = loaded.compared_column(scale, column)
            assert compared.startswith(("imagenet", settings.data.images.replace("glyphs", "cifar")))
            assert compared.endswith(f"/{settings.model.size}")


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_image_runs_that_recur_are_trained_once(scale):
    wide, table = of_cells("comt/tableA7", scale), of_cells("comt/table1", scale)
    names = {"baseline": "baseline", "sliding-window": "sliding-window-1/64", "pixel": "pixel-2"}
    columns = set(shipped("comt/tableA7").columns(scale))
    assert all(found == wide[names[row], column] for (row, column), found in table.items() if column in columns)
    assert not set.union(*table.values()) & ids(["comt/table1-standard"], scale)
    narrow, gates, norms = (of_cells(f"sas/{name}", scale) for name in ("table4", "table6", "table7"))
    column = next(iter(shipped("sas/table6").columns(scale)))
    assert narrow["baseline", column] == gates["baseline", column] == norms["baseline", column]
    assert narrow["sas", column] == norms["sas-layernorm", column]
    starts = of_cells("sas/start", scale)
    assert [starts[row, column] for row in ("baseline", "sas")] == [narrow[row, column] for row in ("baseline", "sas")]


def test_no_column_of_another_target_asks_for_compounds():
    """They are split in German alone: a column that inherits their score would stay empty."""
    for name in of_command("train-mt"):
        loaded = shipped(name)
        for scale, cells in loaded.settings.items():
            for (_, column), settings in cells.items():
                assert settings.data.target == "de" or "compound" not in loaded.recipe.metric_at(scale, column)
