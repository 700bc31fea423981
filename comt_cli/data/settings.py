"""What the settings of all kinds of data have in common: a corpus, which says what it takes of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

from pydantic import model_validator

from comt_cli.data.registry import Named
from comt_cli.recipe.settings import Section


class DataSection(Section):
    """What a run reads. The key `named_by` names one of the corpora of `kind`."""

    kind: ClassVar[type[Named]]
    named_by: ClassVar[str] = "corpus"

    @property
    def chosen(self) -> type[Named]:
        """The class of the corpus that is named."""
        return self.kind.named(str(getattr(self, self.named_by)))

    @model_validator(mode="before")
    @classmethod
    def _one_way_to_say_it(cls, given: Any) -> Any:
        """A value that is implied is stored in one way, so that saying it does not make another run."""
        if not isinstance(given, dict):
            return given
        try:
            corpus = cls.kind.named(str(given.get(cls.named_by, cls.model_fields[cls.named_by].default)))
        except ValueError:  # there is no such corpus, which is told of its own key
            return cls.said_once(given)
        return cls.said_once(
            given | {key: value for key, value in corpus.implied(given).items() if given.get(key) is None}
        )

    @classmethod
    def said_once(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The settings with what else is implied in one way."""
        return given

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        if wrong := list(self.contradictions()):
            raise ValueError(*wrong)  # all at once: `validate` makes a problem of each
        return self

    def contradictions(self) -> Iterator[str]:
        """What cannot be meant, as `key: what is wrong`."""
        corpus, name = self.chosen, str(getattr(self, self.named_by))
        yield from corpus.contradictions(self)
        every = self.kind.all()
        for key in sorted({key for each in every for key in each.keys} - {*corpus.keys}):
            if getattr(self, key) is not None:
                names = ", ".join(name for each in every if key in each.keys for name in each.names or (each.said,))
                reason = corpus.reasons.get(key, f"this is a key of {names}")
                yield f"{key}: {reason}; leave it out of {self.named_by} {name.partition(':')[0]}, or say null"
