"""`python-docs`: English prose that every machine with Python has - the reference topics and the standard library's
docstrings, about 2.3 MB.

Source files are parsed, never imported; only modules written in C, which have no source, are imported, from a fixed
list that is safe. Documents are in a fixed order: topics by name, source files by path, C modules by name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sysconfig
import types
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.text.python_library import MINIMUM_CHARACTERS, LibraryTexts, source_files
from comt_cli.errors import UserError

EXTRACTOR_VERSION = 3
_C_MODULES = """
    _abc _asyncio _bisect _bz2 _codecs _collections _contextvars _csv _datetime _decimal _elementtree _functools
    _hashlib _heapq _io _json _lzma _operator _pickle _queue _random _socket _stat _string _struct _symtable _thread
    _tracemalloc _weakref array atexit binascii builtins cmath errno fcntl gc grp itertools marshal math mmap posix
    pwd pyexpat resource select signal sys termios time unicodedata zlib
"""
C_MODULES = tuple(_C_MODULES.split())
_C_OBJECTS = (
    type,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
)


class PythonDocs(LibraryTexts):
    """The corpus."""

    names = ("python-docs",)
    order = 0
    version = EXTRACTOR_VERSION

    def extract(self, progress: ProgressCallback = no_progress) -> tuple[str, ...]:
        """Read the documents from the running Python: without indentation, each text once, `MINIMUM_CHARACTERS` or
        more.

        Raises:
            UserError: this Python carries neither topics nor the sources of its library.
        """
        seen: dict[str, None] = {}
        for text in _all_texts(progress):
            clean = inspect.cleandoc(text)
            if len(clean) >= MINIMUM_CHARACTERS:
                seen.setdefault(clean)
        if not seen:
            raise UserError(
                "this Python has no documentation of its own", "Use corpus: files:GLOB with a text of yours."
            )
        return tuple(seen)


def _all_texts(progress: ProgressCallback) -> Iterator[str]:
    yield from _topics()
    root = Path(sysconfig.get_path("stdlib"))
    paths = source_files(root)
    for number, path in enumerate(paths):
        progress("extracting python-docs from source files", number, len(paths))
        yield from _docstrings(path.read_bytes())
    progress("extracting python-docs from source files", len(paths), len(paths))
    for name in C_MODULES:
        yield from _c_docstrings(name)


def _topics() -> Iterator[str]:
    """The language reference as `help("topic")` shows it; some distributions leave it out."""
    try:
        from pydoc_data import topics
    except ImportError:
        return
    for name in sorted(topics.topics):
        yield topics.topics[name]


def _docstrings(source: bytes) -> Iterator[str]:
    """The docstrings of a module, its classes and its functions, in the order of the source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old modules hold escapes that the parser warns of
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):  # a template or a file for another Python: it holds no docstrings
            return
    for node in (tree, *_definitions(tree.body)):
        if text := ast.get_docstring(node):
            yield text


def _definitions(body: Iterable[ast.AST]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every class and function below `body`. Only statements are visited: they alone can hold definitions."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, field, None)
            if isinstance(inner, list):
                yield from _definitions(inner)


def _c_docstrings(module_name: str) -> Iterator[str]:
    """The docstrings of a C module, its functions, its classes and their methods, sorted by name.

    Only objects made in C count: what other code has put in their place must not change the corpus.
    """
    try:
        module = importlib.import_module(module_name)
    except ImportError:  # not built on this platform
        return
    yield module.__doc__ or ""
    for _, value in sorted(vars(module).items()):
        if isinstance(value, _C_OBJECTS):
            yield _text(value)
        if isinstance(value, type):
            yield from (_text(member) for _, member in sorted(vars(value).items()) if isinstance(member, _C_OBJECTS))


def _text(value: object) -> str:
    text = getattr(value, "__doc__", None)
    return text if isinstance(text, str) else ""
