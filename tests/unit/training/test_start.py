"""Which tensors a started run takes from its source, and what is said of those that do not fit."""

from __future__ import annotations

import pytest
import torch
from tiny_runs import caption_spec, glue_spec, masked_spec, tiny_spec

from comt_cli.errors import UserError
from comt_cli.runs.plan import RunSpec, RunStart
from comt_cli.training.start import check_starts, loaded_names


@pytest.fixture
def spec(tiny_corpus: str) -> RunSpec:
    return tiny_spec(tiny_corpus)


def started(spec: RunSpec, source: RunSpec | None = None, **parts: tuple[str, ...]) -> RunSpec:
    return spec.model_copy(update={"seed": 9, "start": RunStart(run=source or spec, **parts)})


OWN = {"body.weight": [4, 4], "body.bias": [4], "classifier.weight": [2, 4], "norm": [4]}
SOURCE = {"body.weight": [4, 4], "body.bias": [4], "head.weight": [9, 4], "norm": [4]}
PARTS = {"new": ("classifier",), "drop": ("head",)}


def loaded(start: RunSpec, own: dict[str, list[int]], source: dict[str, list[int]]) -> list[str]:
    """The names that are loaded between models with tensors of these shapes."""
    models = [{name: torch.empty(shape, device="meta") for name, shape in each.items()} for each in (own, source)]
    return loaded_names(start, *models)


def test_all_is_loaded_that_is_not_new(spec):
    assert loaded(started(spec, **PARTS), OWN, SOURCE) == ["body.weight", "body.bias", "norm"]
    same = OWN | {"head.weight": [2, 4]}
    both = {"new": ("classifier", "head"), "drop": ("head",)}  # a head of the same name, and another one
    assert "head.weight" not in loaded(started(spec, **both), same, SOURCE)


@pytest.mark.parametrize(
    ("parts", "own", "source", "expected"),
    [
        ({"new": ()}, {}, {}, "classifier.weight is not in the source, and [2, 4] in the model"),
        ({"drop": ()}, {}, {}, "head.weight is [9, 4] in the source, and not in the model"),
        ({}, {"norm": [5]}, {}, "norm is [4] in the source, and [5] in the model"),
        ({}, {}, {"norm": [4, 1]}, "norm is [4, 1] in the source, and [4] in the model"),
        ({"drop": ("head", "norm")}, {}, {}, "norm is not in the source, and [4] in the model"),
        ({"drop": ("head", "hed")}, {}, {}, "drop names hed, but the source has no such part"),
        ({"new": ("class",)}, {}, {}, "new names class, but the model has no such part"),  # parts are whole names
    ],
)
def test_what_does_not_fit_is_named_with_its_shapes(parts, own, source, expected, spec):
    with pytest.raises(UserError) as error:
        loaded(started(spec, **PARTS | parts), OWN | own, SOURCE | source)
    assert expected in error.value.message


def test_models_that_do_not_fit_are_found_before_anything_is_trained(spec, tiny_corpus):
    check_starts([spec, started(spec)])
    wider = tiny_spec(tiny_corpus, model={"ffn_width": 64})
    with pytest.raises(UserError, match=r"blocks.0\S+ is \[.*64.*\] in the source, and \[.*48.*\] in the model"):
        check_starts([started(spec), started(spec, wider)])


def with_data(spec: RunSpec, **data: object) -> RunSpec:
    changed = spec.settings.model_copy(update={"data": spec.settings.data.model_copy(update=data)})
    return spec.model_copy(update={"settings": changed})


def test_a_vocabulary_of_other_text_is_refused_before_anything_is_trained(tiny_corpus):
    """Which gives ids to other tokens, though the shapes fit."""
    source = masked_spec(tiny_corpus)
    check_starts([glue_spec(tiny_corpus, start=with_data(source, sequence_length=32))])
    others = {"corpus": "c4", "tokenizer": "sentencepiece", "vocabulary": 9, "validation_fraction": 0.3}
    for key, there in others.items():
        with pytest.raises(UserError, match=rf"data\.{key} is .* here and {there} there"):
            check_starts([glue_spec(tiny_corpus, start=with_data(source, **{key: there}))])


def test_captions_of_another_split_are_refused_before_anything_is_trained(spec):
    """Test images may be among those that the source was trained on."""
    own = caption_spec(row="critical", start=caption_spec())
    check_starts([own.model_copy(update={"start": RunStart(run=with_data(caption_spec(), folder="elsewhere"))})])
    for key in type(own.settings.data).model_fields.keys() - {"folder"}:
        with pytest.raises(UserError, match=rf"data\.{key} is .* here and other there"):
            check_starts([own.model_copy(update={"start": RunStart(run=with_data(caption_spec(), **{key: "other"}))})])
