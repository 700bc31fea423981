"""Tokens that come one by one, as text that can be shown at once."""

from __future__ import annotations

from collections.abc import Sequence

from comt_cli.exchange.loaded import TextCodec

BROKEN = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """The text of the tokens that follow on `prompt`, in pieces that are never taken back.

    A character may be spelled by several tokens, and a piece's leading space depends on what is before it. So all
    tokens so far are decoded together each time, and the new part is given out once it does not end in bytes that may
    yet become a character.
    """

    def __init__(self, codec: TextCodec, prompt: Sequence[int]) -> None:
        self.codec, self.ids = codec, list(prompt)
        self.text = ""
        self._whole = codec.decode(self.ids)
        """The prompt's text and what was given out."""

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
