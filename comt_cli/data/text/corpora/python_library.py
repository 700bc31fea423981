"""`python-docs` and `python-source`: texts of the running Python's standard library, without installed packages,
extracted once per Python and cached.

**python-docs**: reference topics by name, docstrings of source files by path, and docstrings of C modules by name:
about 2.3 MB of English prose. Source files are parsed, never imported; only a safe list of C modules is imported.
**python-source**: the sources, about 9 MB, one document per file, sorted by path.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import itertools
import os
import platform
import sysconfig
import tokenize
import types
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.text.settings import Corpus, Document, Place, Stream
from comt_cli.errors import UserError
from comt_cli.files import Cache, canonical_json, sha256

MINIMUM_CHARACTERS = 40
# Tests and other programs, installed packages, and the encodings with their 100 equal docstrings.
_SKIPPED = (
    *("__pycache__", "dist-packages", "encodings", "ensurepip", "idlelib", "lib-dynload", "lib2to3", "pydoc_data"),
    *("site-packages", "test", "tests", "turtledemo"),
)


class LibraryTexts(Corpus):
    """Base class of both corpora; for `version` see tests/contract/test_cache_versions.py."""

    version: ClassVar[int]

    @abstractmethod
    def texts(self, progress: ProgressCallback) -> Iterator[str]:
        """The texts of the running Python, in a fixed order."""

    def identity(self, progress: ProgressCallback = no_progress) -> dict[str, Any]:
        """The hash of all documents, which are extracted in a few seconds if they are not in the cache."""
        return {"corpus": self.names[0], "sha256": _content_hash(self._documents(progress))}

    def streams(self) -> Sequence[Stream]:
        return [Stream(None, self.documents)]

    def documents(self, start: Place = (0, 0)) -> Iterator[Document]:
        documents = [Document(text, (0, number)) for number, text in enumerate(self._documents(no_progress))]
        return iter(documents[start[1] :])

    def _documents(self, progress: ProgressCallback) -> list[str]:
        """The texts, cached per Python and installation, because distributions patch the library."""
        cache = Cache(self.names[0], f"{self.version}, with the hash of its content")
        if cache.folder not in _extracted:
            key = [platform.python_implementation(), platform.python_version(), sysconfig.get_path("stdlib")]
            content, found = cache.get(key) or ("", [])
            if not found or content != _content_hash(found):  # absent or damaged
                found = [*dict.fromkeys(text for text in self.texts(progress) if len(text) >= MINIMUM_CHARACTERS)]
                if not found:
                    hint = "Use corpus: files:GLOB with a text of yours."
                    raise UserError(f"corpus: this Python has no texts for {self.names[0]}", hint)
                cache.put(key, [_content_hash(found), found])
            _extracted[cache.folder] = found
        return _extracted[cache.folder]


_extracted: dict[Path, list[str]] = {}  # by cache folder: a plan needs them once per run


def _content_hash(texts: list[str]) -> str:
    return sha256(canonical_json(texts))


def _sources(progress: ProgressCallback) -> Iterator[bytes]:
    root, found = Path(sysconfig.get_path("stdlib")), list[Path]()
    for folder, below, names in os.walk(root):
        below[:] = {*below} - {*_SKIPPED}
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    for number, path in enumerate(sorted(found, key=lambda path: path.relative_to(root).as_posix())):
        progress("reading the library's source files", number, len(found))
        yield path.read_bytes()


# ---- python-docs

EXTRACTOR_VERSION = 3
_C_MODULES = """
    _abc _asyncio _bisect _bz2 _codecs _collections _contextvars _csv _datetime _decimal _elementtree _functools
    _hashlib _heapq _io _json _lzma _operator _pickle _queue _random _socket _stat _string _struct _symtable _thread
    _tracemalloc _weakref array atexit binascii builtins cmath errno fcntl gc grp itertools marshal math mmap posix
    pwd pyexpat resource select signal sys termios time unicodedata zlib
"""
C_MODULES = tuple(_C_MODULES.split())
_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
_C_OBJECTS = (type, types.BuiltinFunctionType, types.GetSetDescriptorType, types.MemberDescriptorType, *_METHODS)


class PythonDocs(LibraryTexts):
    """The documentation, without indentation."""

    names = ("python-docs",)
    order = 0
    version = EXTRACTOR_VERSION

    def texts(self, progress: ProgressCallback) -> Iterator[str]:
        docstrings = (text for source in _sources(progress) for text in _docstrings(source))
        of_c = (text for name in C_MODULES for text in _c_docstrings(name))
        return map(inspect.cleandoc, itertools.chain(_topics(), docstrings, of_c))


def _topics() -> Iterator[str]:
    """The language reference as in `help("topic")`; some distributions leave it out."""
    with contextlib.suppress(ImportError):
        from pydoc_data import topics

        yield from (topics.topics[name] for name in sorted(topics.topics))


def _docstrings(source: bytes) -> Iterator[str]:
    with warnings.catch_warnings(action="ignore"):  # about escapes in old modules
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):  # a template, or a file for another Python
            return
    yield from (text for node in (tree, *_definitions(tree.body)) if (text := ast.get_docstring(node)))


def _definitions(body: Iterable[ast.AST]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every class and function below `body`. Only statements are visited, because expressions have no definitions."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, field, None)
            yield from _definitions(inner if isinstance(inner, list) else ())


def _c_docstrings(module_name: str) -> Iterator[str]:
    """The docstrings of a C module, its functions, classes and their methods, sorted by name; only of objects made in
    C, because other code may have replaced some."""
    try:
        module = importlib.import_module(module_name)
    except ImportError:  # not built on this platform
        return
    objects: list[Any] = [module]
    for _, value in sorted(vars(module).items()):
        objects += [value] if isinstance(value, _C_OBJECTS) else []
        if isinstance(value, type):
            objects += [member for _, member in sorted(vars(value).items()) if isinstance(member, _C_OBJECTS)]
    yield from (text for each in objects if isinstance(text := getattr(each, "__doc__", None), str))


# ---- python-source

SOURCE_VERSION = 1


class PythonSource(LibraryTexts):
    """The source files."""

    names = ("python-source",)
    version = SOURCE_VERSION

    def texts(self, progress: ProgressCallback) -> Iterator[str]:
        return map(decoded, _sources(progress))


def decoded(source: bytes) -> str:
    """The text of a source file, without blank lines around it; "" if it is not in its declared encoding."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return ""
    return text.replace("\r\n", "\n").strip("\n")
