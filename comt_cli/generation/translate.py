"""Translate lines. They are read in pools, which are sorted by length and cut into batches with little padding. A
pool's batches depend on its lines alone, so that a second call makes the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import torch

from comt_cli.data.pairs.settings import is_blank
from comt_cli.data.tokenizer import PAD, Tokenizer
from comt_cli.exchange.loaded import LoadedTranslator
from comt_cli.generation.beam import Decoded, decode
from comt_cli.generation.transcript import one_line
from comt_cli.models.transformer import EncoderDecoder
from comt_cli.tasks.settings.translation import DecodeSettings

POOL = 512  # lines that are read, translated and written together
BATCH_TOKENS = 2048  # per batch of sources, padding included


class Translator:
    """A model with its tokenizer. Lines are cut to `longest` tokens with the end token (None: no limit); `warn`
    receives a sentence for each line that is cut."""

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        device: torch.device,
        *,
        longest: int | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.device, self.longest = model, tokenizer, device, longest
        self.warn = warn or (lambda _: None)
        self.begin, self.end = tokenizer.special.need("begin"), tokenizer.special.end

    def pools(
        self, lines: Iterable[str], settings: DecodeSettings, n_best: int = 1, first: int = 1
    ) -> Iterator[list[list[Decoded]]]:
        """For each line its translations, the best first, in the order of the lines, `POOL` lines at a time. `first` is
        the user's number of the first line. Raises `UserError`."""
        left = iter(lines)
        while pool := list(islice(left, POOL)):
            sources, found = self.sources(pool, first), [[Decoded("")] for _ in pool]
            for numbers in batches(sources):
                translations = self.search([sources[number] for number in numbers], settings, n_best)
                for number, each in zip(numbers, translations, strict=True):
                    found[number] = each
            yield found
            first += len(pool)

    def sources(self, lines: Sequence[str], first: int = 1) -> list[tuple[int, ...]]:
        """The tokens of every line with the end token; () for a blank line."""
        sources = []
        for number, (line, ids) in enumerate(zip(lines, self.tokenizer.encode_batch(lines), strict=True), first):
            if self.longest is not None and len(ids) >= self.longest:
                self.warn(f"line {number:,} has {len(ids):,} tokens; it is cut to the first {self.longest - 1:,}")
            kept = ids if self.longest is None else ids[: self.longest - 1]
            sources.append(() if is_blank(line) else (*kept, self.end))
        return sources

    def search(
        self, sources: Sequence[Sequence[int]], settings: DecodeSettings, n_best: int = 1
    ) -> list[list[Decoded]]:
        """The translations of the sources of one batch."""
        width = max(map(len, sources))
        source_BS = torch.tensor([[*source, *[PAD] * (width - len(source))] for source in sources], device=self.device)
        lengths = [len(source) + settings.max_extra for source in sources]  # the end counts on both sides
        special = self.tokenizer.special
        found = decode(self.model, source_BS, settings=settings, special=special, max_lengths=lengths, n_best=n_best)
        return [
            [Decoded(one_line(self.tokenizer.decode(each.tokens)), each) for each in hypotheses] for hypotheses in found
        ]


def translator(loaded: LoadedTranslator, device: torch.device, warn: Callable[[str], None] | None = None) -> Translator:
    """A `Translator` of a loaded model, which is moved to the device and computes in fp32."""
    model = loaded.model.to(device, torch.float32).eval()
    return Translator(model, loaded.tokenizer, device, longest=loaded.longest, warn=warn)


def batches(sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """The numbers of the sources that are not empty, in batches of at most `BATCH_TOKENS`. The longest come first, so
    that a lack of memory shows at once."""
    order = sorted((n for n, source in enumerate(sources) if source), key=lambda n: (-len(sources[n]), n))
    found: list[list[int]] = []
    for number in order:
        if found and len(sources[found[-1][0]]) * (len(found[-1]) + 1) <= BATCH_TOKENS:
            found[-1].append(number)
        else:
            found.append([number])
    return found
