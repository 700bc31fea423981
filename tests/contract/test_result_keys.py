"""What the report shows of a run is what training writes: the two share nothing but the run directory."""

from __future__ import annotations

from typing import Any

from tiny_runs import pair_spec, tiny_spec, train, write_corpus

from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.prepare import fingerprint, prepare
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.images import ImageSettings, ImageTrainSettings, ResNetSettings


def image_spec(**train_settings: Any) -> RunSpec:
    """A run of a ResNet of one block on a few 16-pixel letters."""
    data = ImageDataSettings(images="glyphs10", size=16, train_images=64, validation_images=32)
    return RunSpec(
        paper="comt",
        table="tiny",
        command="train-resnet",
        scale="smoke",
        row="a-row",
        column="tiny",
        seed=1,
        method={"name": "addition"},
        settings=ImageSettings(
            model=ResNetSettings(width=8, blocks=(1,)),
            data=data,
            train=ImageTrainSettings(**{"batch_size": 16, "log_every": 1, **train_settings}),
        ),
        data_fingerprint=fingerprint(data),
        data_content=prepare(data).content_hash,
    )


def check(done_spec: RunSpec, diverging_spec: RunSpec, runs) -> None:
    """Every key that the report shows of such runs is one of a done or of a diverged one."""
    directories = [train(spec, runs) for spec in (done_spec, diverging_spec)]
    done, diverged = (directory.result() for directory in directories)
    assert (done["state"], diverged["state"]) == ("done", "diverged")
    task = done_spec.task
    assert set(task.result_keys) <= done.keys() | diverged.keys()
    assert task.unit.per_second in directories[0].timings()[-1]


def test_every_key_that_is_shown_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    corpus = write_corpus(tmp_path / "texts")
    diverging = tiny_spec(corpus, steps=3, warmup_steps=0, log_every=1, learning_rate=1e30)
    check(tiny_spec(corpus, steps=2, warmup_steps=0, log_every=1), diverging, tmp_path / "runs")


def test_every_key_that_is_shown_of_a_translator_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    data = {"target": "de", "validation_pairs": 6, "test_pairs": 6}  # German alone has compounds to split
    done = pair_spec(data=data, steps=2, warmup_steps=1, average_last=2, average_every=1)
    check(done, pair_spec(data=data, steps=6, warmup_steps=1, learning_rate=1e30), tmp_path / "runs")


def test_every_key_that_is_shown_of_an_image_classifier_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    check(image_spec(steps=2), image_spec(steps=6, learning_rate=1e30), tmp_path / "runs")
