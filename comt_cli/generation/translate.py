"""Lines in, translations out. The lines come in pools, which are sorted by length and cut into batches, so that little
is padding. A pool's batches follow from its lines alone, so that a second call makes the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from comt_cli.data.pairs.settings import is_blank
from comt_cli.data.tokenizer import PAD, Tokenizer
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedTranslator
from comt_cli.generation.beam import Decoded, Decodes, decode
from comt_cli.generation.transcript import one_line
from comt_cli.tasks.settings.translation import DecodeSettings

POOL = 512  # lines that are read before the first of them is translated, and written together
BATCH_TOKENS = 2048


@dataclass(frozen=True)
class Options:
    """`n_best` translations of each line, at most `decode.beam`; source tokens of a batch, padding included."""

    decode: DecodeSettings = field(default_factory=DecodeSettings)
    n_best: int = 1
    batch_tokens: int = BATCH_TOKENS

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.decode.beam:
            raise UserError(f"{self.n_best} translations of each line cannot be had from a beam of {self.decode.beam}")


class Translator:
    """A model with its tokenizer. `longest` is the number of tokens, the end included, that a line is cut to, None for
    no limit; `warn` is given a sentence for each that is cut."""

    def __init__(
        self,
        model: Decodes,
        tokenizer: Tokenizer,
        device: torch.device,
        *,
        longest: int | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.device, self.longest = model, tokenizer, device, longest
        self.warn = warn or (lambda _: None)
        self.begin, self.end = tokenizer.special.need("begin"), tokenizer.special.end
        if tokenizer.special.pad != PAD:
            raise ValueError(f"the tokenizer pads with {tokenizer.special.pad}, and models read {PAD} as padding")

    def pools(self, lines: Iterable[str], options: Options, first: int = 1) -> Iterator[list[list[Decoded]]]:
        """For each line its translations, the best first, in the order of the lines, `POOL` lines at a time; the first
        line is number `first` of those that the user gave. Raises `UserError`."""
        left = iter(lines)
        while pool := list(islice(left, POOL)):
            sources, found = self.sources(pool, first), [[Decoded("")] for _ in pool]
            for numbers in batches(sources, options.batch_tokens):
                translations = self.search([sources[number] for number in numbers], options)
                for number, each in zip(numbers, translations, strict=True):
                    found[number] = each
            yield found
            first += len(pool)

    def sources(self, lines: Sequence[str], first: int = 1) -> list[tuple[int, ...]]:
        """The tokens of every line, with the end; nothing for a line in which nothing can be seen."""
        sources = []
        for number, (line, ids) in enumerate(zip(lines, self.tokenizer.encode_batch(lines), strict=True), first):
            if self.longest is not None and len(ids) >= self.longest:
                self.warn(f"line {number:,} has {len(ids):,} tokens; it is cut to the first {self.longest - 1:,}")
            kept = ids if self.longest is None else ids[: self.longest - 1]
            sources.append(() if is_blank(line) else (*kept, self.end))
        return sources

    def search(self, sources: Sequence[Sequence[int]], options: Options) -> list[list[Decoded]]:
        """The translations of the sources of one batch."""
        width = max(map(len, sources))
        source_BS = torch.tensor([[*source, *[PAD] * (width - len(source))] for source in sources], device=self.device)
        lengths = [len(source) + options.decode.max_extra for source in sources]  # the end counts on both sides
        more: dict[str, Any] = {"settings": options.decode, "special": self.tokenizer.special}
        found = decode(self.model, source_BS, max_lengths=lengths, n_best=options.n_best, **more)
        return [
            [Decoded(one_line(self.tokenizer.decode(each.tokens)), tuple(source), each) for each in hypotheses]
            for source, hypotheses in zip(sources, found, strict=True)
        ]


def translator(loaded: LoadedTranslator, device: torch.device, warn: Callable[[str], None] | None = None) -> Translator:
    """Translator of a loaded model, which is moved to the device, and computes in fp32."""
    model = loaded.model.to(device, torch.float32).eval()
    return Translator(model, loaded.tokenizer, device, longest=loaded.longest, warn=warn)


def batches(sources: Sequence[Sequence[int]], batch_tokens: int) -> list[list[int]]:
    """The numbers of the sources that are not empty, in batches of at most so many tokens, padding included, the
    longest first: where the memory does not suffice, that is seen at once."""
    order = sorted((n for n, source in enumerate(sources) if source), key=lambda n: (-len(sources[n]), n))
    found: list[list[int]] = []
    for number in order:
        if found and len(sources[found[-1][0]]) * (len(found[-1]) + 1) <= batch_tokens:
            found[-1].append(number)
        else:
            found.append([number])
    return found
