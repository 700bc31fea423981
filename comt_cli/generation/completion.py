"""Texts in, texts out: a model continues prompts, batch by batch, and tokens are shown as text at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any

from comt_cli.errors import UserError
from comt_cli.exchange.codecs import TextCodec
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.generation.cached import generate
from comt_cli.generation.sampling import count_copies

BROKEN = "\N{REPLACEMENT CHARACTER}"
MOST_ROWS = 64
"""Texts that are generated at once; more come one batch after the other."""


@dataclass
class Completion:
    """A prompt with its tokens, what the model made of it in how many tokens, and whether it ended the text itself."""

    prompt: str
    ids: list[int]
    copy: int = 0
    text: str = ""
    tokens: int = 0
    ended: bool = False


@dataclass
class Pace:
    """Seconds and counts of all batches: `steps` are decode steps, of which each gives a token to every open text."""

    tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    steps: int = 0
    decoded: int = 0

    def numbers(self) -> dict[str, float | None]:
        """Tokens, milliseconds and tokens per second; None where there was no decode step to time."""
        step = 1000 * self.decode_seconds / self.steps if self.steps and self.decode_seconds else None
        rate = None if step is None else self.decoded / self.decode_seconds
        seconds = {"prefill_ms": 1000 * self.prefill_seconds, "decode_ms_per_token": step}
        return {"tokens": self.tokens, **seconds, "tokens_per_second": rate}

    def words(self) -> str:
        """One line for people."""
        tokens, prefill, step, rate = self.numbers().values()
        said = f"{tokens} token{'s' if tokens != 1 else ''}, prefill {prefill:.1f} ms"
        return said if step is None else f"{said}, decode {step:.2f} ms a token, {rate:.1f} tokens/s"


def begin(loaded: LoadedModel, prompts: Sequence[str]) -> list[Completion]:
    """The prompts as tokens, nothing generated yet. Raises `UserError` where one cannot be fed to the model."""
    codec = loaded.text_codec()
    ids = [codec.prompt(prompt) for prompt in prompts]
    if not all(ids):
        raise UserError(f"{loaded.name} has no token that a text begins with", "Give it a --prompt.")
    loaded.check_ids([token for tokens in ids for token in tokens])
    numbered = zip(prompts, ids, count_copies(ids), strict=True)
    return [Completion(prompt, tokens, copy) for prompt, tokens, copy in numbered]


def complete(
    loaded: LoadedModel,
    completions: Sequence[Completion],
    sampling: Mapping[str, Any],
    show: Callable[[str], None] | None = None,
) -> Pace:
    """Fill in the texts of `completions`; `sampling` are arguments of `generate`. `show` is given each piece of text as
    it comes (for one completion)."""
    pace, codec = Pace(), loaded.text_codec()
    for start in range(0, len(completions), MOST_ROWS):
        batch = completions[start : start + MOST_ROWS]
        streams = [TextStream(codec, row.ids) for row in batch]
        ids, copies = [row.ids for row in batch], [row.copy for row in batch]
        steps = generate(loaded.model, ids, **sampling, stop_ids=codec.end_ids, copies=copies)
        for number in count():
            before = perf_counter()  # decoding and printing the text is not the model's time
            if (step := next(steps, None)) is None:
                break
            seconds, tokens = perf_counter() - before, sum(token is not None for token in step)
            pace.tokens += tokens
            if number == 0:
                pace.prefill_seconds += seconds
            else:
                pace.decode_seconds += seconds
                pace.steps += 1
                pace.decoded += tokens
            for row, stream, token in zip(batch, streams, step, strict=True):
                if token is not None:
                    row.tokens += 1
                    row.ended = token in codec.end_ids
                    new = stream.push(token)
                    if show:
                        show(new)
        for row, stream in zip(batch, streams, strict=True):
            rest = stream.finish()
            row.text = stream.text
            if show:
                show(rest)
    return pace


class TextStream:
    """The text of the tokens that follow on `prompt`, in pieces that are never taken back.

    A character may be spelled by several tokens, and a piece's leading space depends on what is before it: all tokens
    so far are decoded together, and the new part is given out once it does not end in a part of a character.
    """

    def __init__(self, codec: TextCodec, prompt: Sequence[int]) -> None:
        self.codec, self.ids = codec, list(prompt)
        self.text = ""
        self._whole = codec.decode(self.ids)  # the prompt's text and what was given out

    def push(self, token: int) -> str:
        """The new text that is certain with this token, often none."""
        self.ids.append(token)
        return self._give(self.codec.decode(self.ids).rstrip(BROKEN))

    def finish(self) -> str:
        """The rest: U+FFFD for bytes that did not become a character."""
        return self._give(self.codec.decode(self.ids))

    def _give(self, whole: str) -> str:
        if self._whole.startswith(whole):
            return ""
        if whole.startswith(self._whole):
            new = whole[len(self._whole) :]
        else:
            # Some decoders take back the characters before a byte that fits nowhere: U+FFFD for each of their bytes.
            pairs = enumerate(zip(whole, self._whole, strict=False))
            shared = next(place for place, (new, old) in pairs if new != old)
            new = BROKEN + whole[shared:].lstrip(BROKEN)
        self._whole, self.text = whole, self.text + new
        return new
