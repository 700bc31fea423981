"""A text is parsed once in a session: reading YAML with its lines is most of what many a command does."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any


def parsed_once(parse: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """`parse`, which depends on the text alone where it raises nothing. Each caller gets a copy of its own."""
    kept: dict[str, bytes] = {}

    @functools.wraps(parse)
    def once(text: str, source: Any) -> Any:
        if text not in kept:
            kept[text] = pickle.dumps(parse(text, source))
        return pickle.loads(kept[text])

    return once
