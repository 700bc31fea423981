r"""Value embeddings: every other block adds rows of its own table of the token ids to its values (nanochat, Karpathy
2026: code).

$$v'_h = v_h + s\,\sigma(w_h\,x_{1:c})\,E_h[t]$$

x is the input of attention, t the token, h a key-value head, and E a table of V rows in each block. Defaults are those
of nanochat (commits e85db6b and 6ed7d1d): tables in the last block and every second one before it, s = 3 and c = 12,
with w from U(0, 0.02). Tables add many parameters and hardly any FLOPs. modded-nanogpt began with a table in each of 12
blocks (its record 14), and later shared three tables, with s = 2 and w = 0 at the start, between the first two and the
last three of 11 blocks (its record 55, #186).
Deviations: Tables start as N(0, 1 / D), not as a uniform distribution of that variance, and have the run's learning
rate and weight decay; nanochat gives them half the token embedding's rate, under another optimiser than its matrices'
(Muon).
"""

from functools import partial
from typing import TYPE_CHECKING

from pydantic import PositiveFloat

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection
from comt_cli.recipe.settings import Count

if TYPE_CHECKING:
    from comt_cli.layers.value_embedding import ValueEmbedding
    from comt_cli.tasks.settings.language import LlamaShape


class ValueEmbeddings(Method):
    """`every`: distance of blocks with a table, counted from the last; `scale`: s; `channels`: c."""

    needs = ("values",)
    residual: ResidualName = "pre-norm"
    every: Count = 2
    scale: PositiveFloat = 3.0
    channels: Count = 12

    def wiring(self) -> Wiring:
        return Wiring(residual_connection(self.residual), value_embedding=partial(_table, self))


def _table(method: ValueEmbeddings, layer: int, shape: "LlamaShape", vocabulary: int) -> "ValueEmbedding | None":
    from comt_cli.layers.value_embedding import ValueEmbedding

    if (shape.layers - 1 - layer) % method.every:
        return None
    head_width = shape.width // shape.heads
    return ValueEmbedding(shape.width, shape.kv_heads, head_width, vocabulary, method.scale, method.channels)
