"""Beam search against every sequence there is, on decoders that a table drives."""

from __future__ import annotations

import itertools

import pytest
import torch
from decided import search_without_rounding
from toy_decoder import BEGIN, END, ToyDecoder

from comt_cli.data.tokenizer import PAD, SpecialTokens
from comt_cli.errors import UserError
from comt_cli.generation.beam import PENALTIES, Forbidden, Hypothesis, decode, top
from comt_cli.tasks.settings.translation import BeamSettings

SOURCES = [[5, 3, 1], [4, 1], [3, 3, 5, 4, 1], [5, 1], [1], [4, 5, 4, 3, 3, 1], [3, 1]]


def padded(sources: list[list[int]], columns: int = 0) -> torch.Tensor:
    width = max(map(len, sources)) + columns
    return torch.tensor([source + [PAD] * (width - len(source)) for source in sources])


def search(model, sources=SOURCES, *, limits: list[int] | int = 8, columns: int = 0, **options):
    limits = [limits] * len(sources) if isinstance(limits, int) else limits
    given = {key: options.pop(key) for key in ("beam", "alpha", "penalty") if key in options}
    between = {"settings": BeamSettings(**given), "special": SpecialTokens(PAD, END, BEGIN)}
    return decode(model, padded(sources, columns), max_lengths=limits, **between, **options)


def every_hypothesis(model: ToyDecoder, source: list[int], limit: int, penalty: str, alpha: float):
    """All that end within `limit` tokens, the best first."""
    found = []
    words = range(3, model.table.shape[1])
    for length in range(limit):
        for tokens in itertools.product(words, repeat=length):
            total = model.forced(source, [*tokens, END])
            found.append((total / PENALTIES[penalty](length + 1, alpha), tokens, total))
    return sorted(found, key=lambda one: (-one[0], one[1]))


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_a_beam_of_all_prefixes_is_exhaustive_search(alpha, penalty):
    V, limit = 6, 4
    for seed in range(6):
        model = ToyDecoder(V, seed, sharpness=1.5)
        found = search(model, beam=V**2, alpha=alpha, penalty=penalty, limits=limit, n_best=5)
        for source, hypotheses in zip(SOURCES, found, strict=True):
            *expected, sixth = every_hypothesis(model, source, limit, penalty, alpha)[:6]
            assert all(one[0] - other[0] > 1e-5 for one, other in itertools.pairwise([*expected, sixth])), "a margin"
            assert [each.tokens for each in hypotheses] == [tokens for _, tokens, _ in expected]
            assert [each.score for each in hypotheses] == pytest.approx([score for score, _, _ in expected], abs=1e-5)


def greedy(model: ToyDecoder, source: list[int], limit: int) -> tuple[int, ...]:
    tokens: list[int] = []
    while len(tokens) < limit:
        allowed = [token for token in range(model.table.shape[1]) if token not in (PAD, BEGIN)]
        tokens.append(max(allowed, key=lambda token: model.forced(source, [*tokens, token])))
        if tokens[-1] == END:
            return tuple(tokens[:-1])
    return tuple(tokens)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_beam_of_one_is_greedy(alpha):
    for seed in range(5):
        model = ToyDecoder(9, seed)
        found = search(model, beam=1, alpha=alpha, limits=7)
        assert [each.tokens for (each,) in found] == [greedy(model, source, 7) for source in SOURCES]


@pytest.mark.parametrize("width", [1, 4])
def test_what_is_forbidden_is_in_no_hypothesis(width):
    model = ToyDecoder(7, end_bias=9.0)
    assert [each.tokens for (each,) in search(model, beam=width, alpha=0.0)] == [()] * len(SOURCES)
    for (best,) in search(model, beam=width, alpha=0.0, forbidden=Forbidden((4, 5), least=2)):
        assert len(best.tokens) >= 2
        assert not {4, 5} & {*best.tokens}


def in_batches(model, sources, order: list[int], size: int) -> list[list[Hypothesis]]:
    found: list[list[Hypothesis]] = [[] for _ in sources]
    for start in range(0, len(order), size):
        numbers = order[start : start + size]
        batch = [sources[number] for number in numbers]
        hypotheses = search(model, batch, limits=[len(source) + 9 for source in batch], beam=4, n_best=4)
        for number, each in zip(numbers, hypotheses, strict=True):
            found[number] = each
    return found


@pytest.mark.parametrize("levels", [None, 2], ids=["apart", "many equal"])
def test_a_sentence_does_not_depend_on_its_batch(levels, monkeypatch):
    """Not even where many probabilities are equal."""
    search_without_rounding(monkeypatch)
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 12, (200,), generator=draw).tolist()
    many = [[*torch.randint(3, 30, (length,), generator=draw).tolist(), END] for length in lengths]
    model = ToyDecoder(30, end_bias=1.0, levels=levels, sharpness=1.5)
    as_given = list(range(len(many)))
    shuffled = torch.randperm(len(many), generator=draw).tolist()
    alone = in_batches(model, many, as_given, 1)
    for order, size in itertools.product((as_given, shuffled), (7, 64)):
        assert in_batches(model, many, order, size) == alone  # the numbers too


def test_of_equal_values_the_first_are_taken():
    values_BN = torch.tensor([[1.0, 3, 3, 2, 3, 2], [5, 4, 3, 2, 1, 0], [0, 0, 0, 0, 0, 0]])
    values_BC, index_BC = top(values_BN, 4)
    assert index_BC.tolist() == [[1, 2, 4, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert values_BC.tolist() == values_BN.gather(1, index_BC).tolist()


def test_what_is_no_number_is_an_error():
    model = ToyDecoder(8)
    with torch.no_grad():
        model.table[:, 4] = float("nan")
    with pytest.raises(UserError, match="not finite numbers"):
        search(model)


class Scripted(ToyDecoder):
    """`a b` and the end of it is the likeliest sequence; the empty one is the likeliest after a single step."""

    def step(self, tokens_R1, cache, memory):
        rows = {END: [1] * 5, BEGIN: [0, 0.4, 0, 0.6, 0], 3: [0, 0.05, 0, 0, 0.95], 4: [0, 1, 0, 0, 0]}
        return torch.tensor([rows[int(token)] for token in tokens_R1]).log()


def test_the_shortest_hypothesis_is_not_taken_for_the_best():
    """The empty one is the first to be finished: the search goes on while another can still beat it."""
    found = search(Scripted(5), [[1]], beam=2, n_best=2, alpha=0.6)
    assert [each.tokens for each in found[0]] == [(3, 4), ()]
    assert found[0][0].log_probability == pytest.approx(torch.tensor(0.6 * 0.95).log().item())
    with_average = search(Scripted(5), [[1]], beam=2, n_best=2, alpha=1.0, penalty="average")
    assert with_average[0][0].score == pytest.approx(torch.tensor(0.6 * 0.95).log().item() / 3)
