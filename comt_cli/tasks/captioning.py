"""Captioning: describe an image in a sentence from its regions; scored as COCO scores captions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli import words
from comt_cli.tasks.base import EncoderDecoderTask, Metric, percentage, relative, score

if TYPE_CHECKING:
    from comt_cli.recipe.settings import RunSettings
    from comt_cli.tasks.settings.captioning import CaptioningSettings

TYPICAL_LENGTH = 13  # words of a caption when costs are estimated, the end included

SCORES = {
    "cider": ("CIDEr-D", "times 100, as papers print it; as the COCO toolkit counts it"),
    **{f"bleu{n}": (f"BLEU-{n}", "of the corpus, unsmoothed, as the COCO toolkit counts it") for n in range(1, 5)},
    "rouge_l": ("ROUGE-L", "as the COCO toolkit counts it"),
    "meteor": ("METEOR", "the COCO toolkit's, which needs Java"),
    "spice": ("SPICE", "the COCO toolkit's, which needs Java"),
}
"""The scores by key: name, and definition."""


def _metrics() -> dict[str, Metric]:
    found = {}
    for prefix, split in {"": "validation", "test_": "test"}.items():
        for key in SCORES if prefix else ("cider",):
            name, how = SCORES[key]
            said = f"{name} of the {split} images' captions ({how})"
            beside = f"{prefix}scene_f1" if key == "cider" else None
            found[prefix + key] = score(said, f"{split} {name}", name, decimals=1, beside=beside)
        said = f"F1 of what captions of the {split} scenes say, against what is in the scenes, in per cent"
        remark = "CIDEr-D hardly sees whether relations are true; scene F1 does, where the scene is known."
        label = f"{split} scene F1, %"
        found[f"{prefix}scene_f1"] = percentage(said, label, "scene F1", decimals=1, remark=remark)
    said = "perplexity of a word of a validation caption, given those before it"
    return {**found, "target_perplexity": relative(said, "word perplexity", "perplexity")}


class Captioning(EncoderDecoderTask["CaptioningSettings"]):
    """Train the captioners of a recipe. Write its table with the paper's numbers.

    Finished runs are skipped and stopped runs resume, as with comt train-lm. Self-critical runs start from runs trained
    with cross-entropy, which are trained first. The test images are captioned once, after training; a run that is
    stopped there resumes there. More: recipes/CAPTIONS.md, recipes/RUNNING.md

    Examples:
      comt train-caption sas/table5
      comt train-caption sas/table5-cross-entropy --scale paper --set data.folder=mscoco
    """

    name: ClassVar = "captioning"
    command: ClassVar = "train-caption"
    family: ClassVar = "Captioner"
    metrics: ClassVar[Mapping[str, Metric]] = _metrics()
    plain: ClassVar = "the plain Post-LN captioner of the same size"
    model_kind: ClassVar = "a captioner"
    verbs: ClassVar = ("caption", "analyze-gates")
    description: ClassVar = (
        "Captioner {model.size}: {shape.encoder_layers} + {shape.decoder_layers} layers, {shape.width} wide, "
        "{shape.heads} heads{size}. {data.corpus}, at most {data.regions} regions of {data.features:,} numbers an "
        "image, a vocabulary of {data.vocabulary_size:,}; {train.steps:,} steps of {images}{amount}, {learns}; beam "
        "{decode.beam}"
    )
    amount: ClassVar = "words a run, sampled ones included"
    trained_on: ClassVar = "{corpus}"

    def lacks(self, settings: CaptioningSettings, metric: str) -> str | None:
        if metric.removeprefix("test_") == "scene_f1" and settings.data.corpus != "scenes":
            return f"the content of the images is known only for data.corpus: scenes, not for {settings.data.corpus}"
        return None

    def start_mismatch(self, settings: CaptioningSettings, source: RunSettings) -> str | None:
        own, theirs = settings.data, source.data
        if not isinstance(theirs, type(own)):
            return "its data is not captioned images"
        wrong = [
            f"data.{key} is {value} here and {getattr(theirs, key)} there"
            for key, value in own
            if key != "folder" and value != getattr(theirs, key)
        ]
        if not wrong:
            return None
        return f"{words.listing(wrong)}, so that it may have been trained on test images"

    def data_name(self, settings: CaptioningSettings) -> str:
        return settings.data.corpus

    def dimensions(self, settings: CaptioningSettings) -> dict[str, int]:
        data: Any = settings.data  # all its sizes are set by now
        sizes = {"vocabulary": data.vocabulary_size, "regions": data.regions, "features": data.features}
        length = min(TYPICAL_LENGTH, data.max_length + 1)
        return {**sizes, "length": length, "captions": settings.train.samples or 1}

    def step(self, settings: CaptioningSettings) -> str:
        return f"{words.plural(settings.train.batch_size, 'image')}{self._samples(settings)}"

    def _samples(self, settings: CaptioningSettings) -> str:
        samples = settings.train.samples
        return "" if samples is None else f" with {words.plural(samples, 'sampled caption')} each"

    def phrases(self, settings: CaptioningSettings) -> dict[str, Any]:
        train = settings.train
        learns = f"cross-entropy, label smoothing {train.label_smoothing:g}"
        if train.objective == "cider":
            compared = {"greedy": "the greedy caption's", "others": "the mean of the others'"}
            baseline = compared[train.self_critical_baseline or "greedy"]
            training = f"self-critical training on CIDEr-D{self._samples(settings)}"
            learns = f"{training}, whose reward is compared with {baseline}"
        return {"learns": learns, "images": words.plural(train.batch_size, "image")}

    def own_columns(self, settings: CaptioningSettings) -> dict[str, Any]:
        shown = {"corpus": settings.data.corpus, "objective": settings.train.objective}
        return {"width": settings.model.shape().width, **shown}
