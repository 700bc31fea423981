"""Let Griffe find doctests in docstrings that have no section of examples."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Put doctests into the section that Google's style has for examples."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring and ">>>" in obj.docstring.value:
            text, mark, example = obj.docstring.value.partition(">>>")
            lines = (f"    {line}" for line in (mark + example).splitlines())
            obj.docstring.value = f"{text.rstrip()}\n\nExamples:\n" + "\n".join(lines)
