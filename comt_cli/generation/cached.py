"""Continue texts token by token: prefill, decode steps, and sampling.

Shapes: B rows (texts), T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.generation.sampling import NOT_FINITE, count_copies, draw, uniform_numbers
from comt_cli.layers.kv_cache import KeyValueCache
from comt_cli.layers.projection import Projections
from comt_cli.models.llama import Llama

WARM_UP_STEPS = 3  # before capture: the first steps compile kernels and allocate libraries' memory


@torch.no_grad()
def decode_step(model: Llama, cache: KeyValueCache, tokens_BT: Tensor) -> Tensor:
    """Feed each text its next tokens, [B, T]; returns the logits of the following token, [B, V]."""
    return F.linear(model.hidden(tokens_BT, cache)[:, -1], model.head_weight)


class Decoder:
    """A model with a key-value cache for `rows` texts of up to `capacity` tokens, prompts included. With `graph` (CUDA
    only) a step is captured once in a CUDA graph and then replayed, which costs Python less time than launching its
    kernels. The model must not be changed afterwards: its projections are frozen here (`Projections.freeze`)."""

    def __init__(self, model: Llama, rows: int, capacity: int, *, graph: bool) -> None:
        like = model.embedding.weight
        for module in model.modules():
            if isinstance(module, Projections):
                module.freeze()
        self.model = model
        self.cache = KeyValueCache(model.shape, rows, capacity, model.settings.rope_theta, like.detach())
        self.device = like.device
        self.uses_graph = graph
        self._graph: torch.cuda.CUDAGraph | None = None
        self._tokens_B1 = torch.zeros(rows, 1, dtype=torch.int64, device=like.device)
        self._logits_BV: Tensor | None = None

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Clear the cache and read `rows` prompts of one token or more; returns the logits of their next tokens, [B,
        V]. Raises `UserError` beyond the capacity."""
        lengths = [len(prompt) for prompt in prompts]
        self.cache.begin(lengths)
        padded = [[0] * (max(lengths) - len(prompt)) + list(prompt) for prompt in prompts]
        return decode_step(self.model, self.cache, torch.tensor(padded, device=self.device))

    @torch.no_grad()
    def step(self, tokens_B: Tensor) -> Tensor:
        """Feed each text its next token, int64 [B]; returns the logits of the following token, [B, V]. With a graph the
        next step overwrites them. Raises `UserError` beyond the capacity."""
        if not self.uses_graph:
            return decode_step(self.model, self.cache, tokens_B[:, None])
        self.cache.need(1)
        if self._graph is None or self._logits_BV is None:
            self._graph, self._logits_BV = self._captured()
        self._tokens_B1.copy_(tokens_B[:, None])
        self._graph.replay()
        self.cache.replayed(1)
        return self._logits_BV

    def _captured(self) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """The step in a graph, and the logits that it writes. The cache does not change."""
        cache, column, graph = self.cache, self.cache.stored, torch.cuda.CUDAGraph()
        cache.static_shapes = True
        try:
            with torch.cuda.device(self.device):
                own = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                current = torch.cuda.current_stream()
                own.wait_stream(current)
                with torch.cuda.stream(own):
                    for _ in range(WARM_UP_STEPS):
                        decode_step(self.model, cache, self._tokens_B1)
                        cache.rewind(column)
                current.wait_stream(own)
                with torch.cuda.graph(graph):
                    logits_BV = decode_step(self.model, cache, self._tokens_B1)
        finally:
            cache.static_shapes = False
        cache.rewind(column)
        return graph, logits_BV


def generate(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    stop_ids: Collection[int] = (),
    copies: Sequence[int] | None = None,
    graph: bool | None = None,
) -> Iterator[list[int | None]]:
    """Yield the next token of every prompt, step by step, until each text has ended or has `max_new_tokens`. One of
    `stop_ids` ends a text; it is yielded, and None follows. The samples of a text do not depend on other texts (see
    `uniform_numbers`; `copies` are counted if not given). `graph` None means CUDA only (see `Decoder`). Requires at
    least one prompt, each of one token or more, `temperature` >= 0 and `top_p` in (0, 1]. Raises `UserError` if the
    logits of an open text are not finite."""
    device = model.embedding.weight.device
    copies = count_copies(prompts) if copies is None else copies
    uniform_BN = uniform_numbers(prompts, max_new_tokens, seed, copies).to(device)
    capacity = max(map(len, prompts)) + max_new_tokens
    decoder = Decoder(model, len(prompts), capacity, graph=device.type == "cuda" if graph is None else graph)
    is_open = [True] * len(prompts)
    logits_BV = decoder.prefill(prompts)
    for number in range(max_new_tokens):
        token_B = draw(logits_BV, uniform_BN[:, number], temperature, top_p)
        step = [token if go_on else None for token, go_on in zip(token_B.tolist(), is_open, strict=True)]
        if NOT_FINITE in step:
            raise UserError("the outputs of the network are not finite numbers", "Its training may have diverged.")
        yield step
        is_open = [token is not None and token not in stop_ids for token in step]
        if not any(is_open):
            return
        if number + 1 < max_new_tokens:
            logits_BV = decoder.step(token_B.clamp(min=0))
