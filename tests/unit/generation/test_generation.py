"""Which tokens a model goes on with, on a model small enough to compute by hand, and how they are drawn."""

from __future__ import annotations

import math

import pytest
import torch
from decided import draw_with_a_margin
from hypothesis import given
from hypothesis import strategies as st
from initialised import shaken
from method_cases import TOKENS, built, wiring_of
from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.generation.cached import Decoder, generate
from comt_cli.generation.sampling import nucleus
from comt_cli.models.llama import Llama

PROMPTS = [row[:length].tolist() for row, length in zip(TOKENS, (5, 12, 1), strict=True)]


@pytest.fixture(scope="module")
def model() -> Llama:
    return shaken(built(wiring_of({"name": "comt"})))


def texts(model: Llama, prompts: list[list[int]], count: int = 9, **options) -> list[list[int]]:
    """Continuation of each prompt."""
    steps = list(generate(model, prompts, max_new_tokens=count, **options))
    assert len(steps) <= count
    assert all(len(step) == len(prompts) for step in steps)
    return [[step[row] for step in steps if step[row] is not None] for row in range(len(prompts))]


def test_greedy_is_the_most_likely_token_of_the_whole_text(model, monkeypatch):
    draw_with_a_margin(monkeypatch)
    for prompt, found in zip(PROMPTS, texts(model, PROMPTS), strict=True):
        ids = list(prompt)
        for token in found:
            with torch.no_grad():
                assert token == int(model(torch.tensor([ids]))[0, -1].argmax())
            ids.append(token)
        assert len(found) == 9


@pytest.mark.parametrize("options", [{}, {"temperature": 1.3, "top_p": 0.9, "seed": 4}], ids=["greedy", "drawn"])
def test_a_text_does_not_depend_on_what_else_is_in_the_batch(options, model, monkeypatch):
    draw_with_a_margin(monkeypatch)
    together = texts(model, PROMPTS, **options)
    assert [texts(model, [prompt], **options)[0] for prompt in PROMPTS] == together
    assert texts(model, PROMPTS[::-1], **options) == together[::-1]
    # nor on how long it may get
    assert [text[:4] for text in together] == texts(model, PROMPTS, 4, **options)


def test_a_text_ends_with_a_stop_token_and_stays_ended(model):
    whole = texts(model, PROMPTS)[0]
    found = [step[0] for step in generate(model, PROMPTS, max_new_tokens=9, stop_ids=[whole[2]])]
    end = whole.index(whole[2]) + 1
    assert found[:end] == whole[:end]
    assert set(found[end:]) <= {None}


def test_a_model_that_diverged_says_so():
    model = built(wiring_of({"name": "pre-ln"}))
    with torch.no_grad():
        model.head.weight[7] = math.nan
    with pytest.raises(UserError, match="not finite numbers"):
        list(generate(model, [[1], [2]], max_new_tokens=3))


def test_seeds_and_copies_make_other_texts_and_the_same_seed_the_same(model, monkeypatch):
    draw_with_a_margin(monkeypatch)
    options = {"temperature": 1.0, "top_p": 1.0}
    drawn = [texts(model, [PROMPTS[0]] * 3, 12, seed=seed, **options) for seed in (0, 1, 0)]
    assert drawn[0] == drawn[2]
    different = {tuple(text) for text in drawn[0] + drawn[1]}
    assert len(different) == 6
    assert texts(model, [PROMPTS[0]], 12, copies=[2], **options)[0] == drawn[0][2]


@st.composite
def distributions(draw: st.DrawFn) -> Tensor:
    """Logits of 1 to 3 rows, with ties and impossible tokens among them."""
    size, rows = draw(st.integers(1, 20)), draw(st.integers(1, 3))
    value = st.one_of(st.integers(-3, 3).map(float), st.floats(-30, 30), st.just(-1e4))
    return torch.tensor(draw(st.lists(st.lists(value, min_size=size, max_size=size), min_size=rows, max_size=rows)))


@given(logits=distributions(), top_p=st.floats(0.05, 1.0))
def test_tokens_are_drawn_as_often_as_their_probability_says(logits, top_p):
    """An even grid of numbers in place of random ones: each token's share of it is its probability in the set; of
    tokens that are equally likely to rounding, their share together."""
    count = 4000
    grid = (torch.arange(count) + 0.5) / count
    found = nucleus(logits[:1].expand(count, -1), grid, 1.0, top_p)
    share = torch.bincount(found, minlength=logits.shape[1]).double() / count
    p, token = logits[0].double().softmax(-1).sort(descending=True, stable=True)
    reached = p.cumsum(0)
    kept = 1 + int((reached < top_p - 1e-6).sum())
    wide = min(len(p), 1 + int((reached < top_p + 1e-6).sum()))  # where p is met to the last digit, either set is right
    sets = [
        torch.zeros(len(p), dtype=torch.float64).index_copy(0, token[:n], p[:n] / reached[n - 1]) for n in (kept, wide)
    ]
    _, alike = (logits[0] * 1e5).round().unique(return_inverse=True)
    together = [torch.zeros_like(share).index_add(0, alike, share - expected) for expected in sets]
    # A share of a grid of n numbers is right to 1 / n at either end.
    assert min(error.abs().max() for error in together) <= 2 / count


def test_the_largest_numbers_draw_a_token_that_can_be():
    """fp32 makes 1 of the largest numbers in fp64 below it; 0.5 is the first of the second of two equal tokens."""
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))
    logits[:, [0, 2, 30]] = -torch.inf
    least = int(logits.where(logits.isfinite(), 99.0).argmin())
    for number in (1 - 2**-53, 1 - 2**-26, 1.0):
        assert nucleus(logits, torch.tensor([number], dtype=torch.float64), 1.0, 1.0).tolist() == [least]
    assert nucleus(torch.zeros(2, 2), torch.tensor([0.0, 0.5]), 1.0, 1.0).tolist() == [0, 1]


def test_the_decoder_step_by_step(model):
    decoder = Decoder(model, 3, 20, graph=False)
    for _ in range(2):  # a second prefill begins anew
        logits = [decoder.prefill(PROMPTS)]
        logits += [decoder.step(TOKENS[:, step]) for step in range(3)]
    with torch.no_grad():
        for row, prompt in enumerate(PROMPTS):
            whole = model(torch.tensor([prompt + TOKENS[row, :3].tolist()]))[0, -4:]
            # fp32 sums in another order, on logits of about one: a few 1e-6
            torch.testing.assert_close(torch.stack(logits)[:, row], whole, rtol=1e-4, atol=1e-5)
    for _ in range(decoder.cache.capacity - decoder.cache.stored):
        decoder.step(TOKENS[:, 0])
    with pytest.raises(UserError, match="room for 20 tokens"):
        decoder.step(TOKENS[:, 0])
