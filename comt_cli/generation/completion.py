"""Continue prompts batch by batch, and stream the tokens as text."""

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
"""Texts per batch."""


@dataclass
class Completion:
    """A prompt with its tokens; the generated text and its number of tokens; and whether the model ended the text."""

    prompt: str
    ids: list[int]
    copy: int = 0
    text: str = ""
    tokens: int = 0
    ended: bool = False


def begin(loaded: LoadedModel, prompts: Sequence[str]) -> list[Completion]:
    """The prompts as tokens, before generation. Raises `UserError` if one cannot be fed to the model."""
    codec = loaded.text_codec()
    ids = [codec.prompt(prompt) for prompt in prompts]
    if not all(ids):
        raise UserError(f"{loaded.name} has no begin token, so the prompt cannot be empty", "Give a --prompt.")
    loaded.check_ids([token for tokens in ids for token in tokens])
    numbered = zip(prompts, ids, count_copies(ids), strict=True)
    return [Completion(prompt, tokens, copy) for prompt, tokens, copy in numbered]


def complete(
    loaded: LoadedModel,
    completions: Sequence[Completion],
    sampling: Mapping[str, Any],
    show: Callable[[str], None] | None = None,
) -> None:
    """Fill in the texts of `completions`; `sampling` are arguments of `generate`. `show` receives each piece of text at
    once (for one completion)."""
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
    """The text of the tokens after `prompt`, in final pieces: all tokens are decoded together, and new text is returned
    once it does not end inside a character."""

    def __init__(self, codec: TextCodec, prompt: Sequence[int]) -> None:
        self.codec, self.ids = codec, list(prompt)
        self.text = ""
        self._whole = codec.decode(self.ids)  # the prompt's text and the returned pieces

    def push(self, token: int) -> str:
        """The new text that is final with this token, often ""."""
        self.ids.append(token)
        return self._give(self.codec.decode(self.ids).rstrip(BROKEN))

    def finish(self) -> str:
        """The rest: U+FFFD for bytes of an incomplete character."""
        return self._give(self.codec.decode(self.ids))

    def _give(self, whole: str) -> str:
        new = whole[len(self._whole) :]
        if new:
            self._whole, self.text = whole, self.text + new
        return new
