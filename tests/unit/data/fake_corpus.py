"""Text for tests, and a corpus that can fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from comt_cli.data.corpus import Document

PROSE = "the gate reads a token and scales what the projection adds to the residual stream of every layer"
WORDS = PROSE.split()


class FakeCorpus:
    """Texts given in files; may fail in the middle, and counts what is read."""

    split = None

    def __init__(
        self,
        files: Sequence[Sequence[str]],
        endless: bool = False,
        validation_tokens: int | None = None,
        fail_at: tuple[int, int] | None = None,
    ) -> None:
        self.files = files
        self.endless = endless
        self.validation_tokens = validation_tokens
        self.fail_at = fail_at
        self.read: list[tuple[int, int]] = []

    @property
    def total(self) -> int | None:
        return None if self.endless else sum(len(file) for file in self.files)

    def identity(self, progress: Any = None) -> dict[str, Any]:
        return {"corpus": "fake", "files": [list(file) for file in self.files]}

    def streams(self) -> list[FakeCorpus]:
        return [self]

    def documents(self, start: tuple[int, int] = (0, 0)) -> Iterator[Document]:
        for file, texts in enumerate(self.files):
            for number, text in enumerate(texts):
                if (file, number) < start:
                    continue
                if (file, number) == self.fail_at:
                    raise RuntimeError("the power went out")
                self.read.append((file, number))
                yield Document(text, (file, number))


def sentences(count: int, seed: int = 0) -> list[str]:
    """Different short texts, the same for the same seed."""
    return [
        f"{number} " + " ".join(WORDS[(number * 7 + seed + i * i) % len(WORDS)] for i in range(3 + number * 5 % 17))
        for number in range(count)
    ]
