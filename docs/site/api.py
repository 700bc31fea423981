"""Generate the page of the Python API, and let Griffe find the examples of docstrings."""

from __future__ import annotations

from typing import Any

import griffe

HEAD = """\
# Python API

The public names of `comt_cli`, and the gates and residual connections of `comt_cli.layers`, which work in any PyTorch
model. [comt as a library](library.md) is the guide with examples. `comt_cli.__version__` is the version as text.
Errors are `comt_cli.errors.UserError`; the message states the cause and the remedy.
"""


def page() -> str:
    """The whole page, as instructions for mkdocstrings."""
    import comt_cli
    from comt_cli import layers  # imports torch, which Griffe does without

    functions = [name for name in sorted(comt_cli.__all__) if name != "__version__"]
    text = [HEAD, "\n## Functions\n", *(entry("comt_cli", getattr(comt_cli, name)) for name in functions)]
    return "".join(
        [*text, "\n## Layers\n", *(entry(layers.__name__, getattr(layers, name)) for name in layers.__all__)]
    )


def entry(package: str, thing: Any) -> str:
    """One function or class, under the name that it is imported by."""
    options = f"      heading: {package}.{thing.__name__}\n      toc_label: {thing.__name__}\n"
    return f"\n::: {thing.__module__}.{thing.__name__}\n    options:\n{options}"


class Examples(griffe.Extension):  # type: ignore[misc]
    """Put doctests into the section of examples that Google's style has."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring and ">>>" in obj.docstring.value:
            text, mark, example = obj.docstring.value.partition(">>>")
            lines = (f"    {line}" for line in (mark + example).splitlines())
            obj.docstring.value = f"{text.rstrip()}\n\nExamples:\n" + "\n".join(lines)
