"""`python-source`: the sources of the running Python's standard library, about 9 MB: code with its documentation, for
where `python-docs` is too little text. One document a file, in the order of their paths.
"""

from __future__ import annotations

import io
import sysconfig
import tokenize
from pathlib import Path

from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.text.python_library import MINIMUM_CHARACTERS, LibraryTexts, source_files
from comt_cli.errors import UserError

SOURCE_VERSION = 1


class PythonSource(LibraryTexts):
    """The corpus."""

    names = ("python-source",)
    version = SOURCE_VERSION

    def extract(self, progress: ProgressCallback = no_progress) -> tuple[str, ...]:
        """Read the sources of the running Python's library, each text once, `MINIMUM_CHARACTERS` or more.

        Raises:
            UserError: this Python does not carry them.
        """
        paths = source_files(Path(sysconfig.get_path("stdlib")))
        seen: dict[str, None] = {}
        for number, path in enumerate(paths):
            progress("reading the library's source files", number, len(paths))
            text = decoded(path.read_bytes())
            if len(text) >= MINIMUM_CHARACTERS:
                seen.setdefault(text)
        progress("reading the library's source files", len(paths), len(paths))
        if not seen:
            raise UserError("this Python has no sources of its library", "Use corpus: files:GLOB with a text of yours.")
        return tuple(seen)


def decoded(source: bytes) -> str:
    """A source file's text, by its own declaration of an encoding, without blank lines around it and with one character
    a line end. A file that is not in the encoding it declares, a template for instance, has none."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return ""
    return text.replace("\r\n", "\n").strip("\n")
