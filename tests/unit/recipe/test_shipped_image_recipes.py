"""The shipped recipes of image classifiers: what the papers ran, and what fits on two cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from planning_on import plan_on

from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.methods import catalogue
from comt_cli.recipe.find import available_recipes
from comt_cli.recipe.load import load_recipe
from comt_cli.recipe.yaml_lines import read
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.images import ImageSettings, ImageTrainSettings

LOADED = {
    name: load_recipe(path, catalogue())
    for name, path in available_recipes().items()
    if read(path).data["command"] == "train-resnet" and not name.startswith("ours/")
}
"""Those of the papers' tables and figures; studies of ours have scales of their own."""


def runs_of(name: str, scale: str) -> list[RunSpec]:
    return plan_on(
        LOADED[name], scale, lambda settings: (settings.data.model_dump_json(), settings.data.model_dump_json())
    )


def told(name: str, scale: str) -> Iterator[tuple[str, ImageSettings]]:
    """Every column, and what its runs are told: the same for every row."""
    for column in LOADED[name].columns(scale):
        found = {
            settings.model_dump_json() for (_, of), settings in LOADED[name].settings[scale].items() if of == column
        }
        (only,) = found
        yield column, ImageSettings.model_validate_json(only)


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


def test_every_recipe_is_here():
    assert set(LOADED) == set(PAPER)


@pytest.mark.parametrize("name", PAPER)
def test_the_scale_paper_is_what_the_papers_ran(name):
    for column, settings in told(name, "paper"):
        images, size = column.split("/")
        assert (settings.data.images, settings.model.size) == (images, size)
        assert (settings.model.width, settings.model.blocks) == (None, None)
        assert settings.model.stem == ("7x7" if images == "imagenet" else "3x3")
        assert settings.data.augmentation == ("resized-crop-flip" if images == "imagenet" else "crop-flip")
        assert settings.data.size == (224 if images == "imagenet" else 32)
        assert settings.data == ImageDataSettings(  # all images of both sides
            images=images, size=settings.data.size, augmentation=settings.data.augmentation
        )
        assert learning(settings.train) == PAPER[name]
        assert settings.train.precision == "fp32"


def test_the_papers_seeds():
    for name, loaded in LOADED.items():
        seeds = len(loaded.recipe.seeds)
        single = "/figure" in name or name == "comt/table2"
        assert seeds == (1 if single else 3 if name.startswith("comt") else 5)
        assert single or len(loaded.recipe.scales["small"].seeds) == 3


@pytest.mark.parametrize("scale", ["smoke", "evening", "small"])
def test_every_column_of_a_scale_shows_one_network_on_one_set_of_letters(scale):
    for name, loaded in LOADED.items():
        if scale not in loaded.recipe.scales:
            continue
        for column, settings in told(name, scale):
            images, size = column.split("/")
            assert (settings.data.images, settings.model.size) == (images, size)
            assert images.startswith("glyphs")
            assert settings.data.augmentation == ("crop" if scale == "small" else "none")  # no letter is mirrored
            compared = loaded.compared_column(scale, column)
            assert compared.endswith(f"/{size}")
            assert compared.startswith(("imagenet", images.replace("glyphs", "cifar")))


def test_smoke_runs_of_image_classifiers_share_seed_batches_and_letters():
    runs = {run.id: run for name in LOADED for run in runs_of(name, "smoke")}.values()
    assert {(run.seed, run.settings.train.batch_size) for run in runs} == {(1, 64)}
    letters = {
        ("glyphs10", 16),
        ("glyphs100", 16),
        ("glyphs100", 32),
    }  # drawn once each; the larger for ImageNet's stem
    assert {(run.settings.data.images, run.settings.data.size) for run in runs} == letters


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_runs_that_recur_are_trained_once(scale):
    def ids(name: str) -> dict[tuple[str, str], set[str]]:
        found: dict[tuple[str, str], set[str]] = {}
        for run in runs_of(name, scale):
            found.setdefault((run.row, run.column), set()).add(run.id)
        return found

    wide, table = ids("comt/tableA7"), ids("comt/table1")
    names = {"baseline": "baseline", "sliding-window": "sliding-window-1/64", "pixel": "pixel-2"}
    columns = set(LOADED["comt/tableA7"].columns(scale))
    assert columns <= {column for _, column in table}
    assert all(found == wide[names[row], column] for (row, column), found in table.items() if column in columns)
    in_table = set.union(*table.values())
    assert set.union(*ids("comt/figure3").values()) <= in_table
    assert not in_table & set.union(*ids("comt/table1-standard").values())
    both = set.union(*ids("sas/table4").values())
    for name in ("sas/figure3", "sas/figure4"):
        assert set.union(*ids(name).values()) <= both
    narrow, gates, norms = ids("sas/table4"), ids("sas/table6"), ids("sas/table7")
    column = next(iter(LOADED["sas/table6"].columns(scale)))
    assert narrow["baseline", column] == gates["baseline", column] == norms["baseline", column]
    assert narrow["sas", column] == norms["sas-layernorm", column]
    starts = ids("sas/start")
    assert [starts[row, column] for row in ("baseline", "sas")] == [narrow[row, column] for row in ("baseline", "sas")]


def test_the_rows():
    table = LOADED["comt/tableA7"]
    modulators = [method.get("ratio", method.get("hidden")) for method in table.methods.values()]
    assert modulators == [None, 16, 32, 64, 2, 4, 8]
    assert LOADED["comt/table1"].methods == LOADED["comt/table1-standard"].methods == LOADED["comt/table2"].methods
    ours = [row for row, entry in LOADED["sas/table6"].recipe.rows.items() if not entry.in_paper]
    assert ours == ["rezero", "scaled-0.1", "scaled-depth", "scaled-learned"]
