"""Texts in, texts out: a model continues prompts, batch by batch, and tokens are shown as text at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
) -> None:
    """Fill in the texts of `completions`; `sampling` are arguments of `generate`. `show` is given each piece of text as
    it comes (for one completion)."""
    show, codec = show or (lambda _: None), loaded.text_codec()
    for start in range(0, len(completions), MOST_ROWS):
        batch = completions[start : start + MOST_ROWS]
        streams = [TextStream(codec, row.ids) for row in batch]
        ids, copies = [row.ids for row in batch], [row.copy for row in batch]
        for step in generate(loaded.model, ids, **sampling, stop_ids=codec.end_ids, copies=copies):
            for row, stream, token in zip(batch, streams, step, strict=True):
                if token is not None:
                    row.tokens += 1
                    row.ended = token in codec.end_ids
                    show(stream.push(token))
        for row, stream in zip(batch, streams, strict=True):
            show(stream.finish())
            row.text = stream.text


class TextStream:
    """The text of the tokens that follow on `prompt`, in pieces that are never taken back: all tokens so far are
    decoded together, and the new part is given out once it does not end in a part of a character."""

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
        new = whole[len(self._whole) :]
        if new:
            self._whole, self.text = whole, self.text + new
        return new
