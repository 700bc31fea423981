"""A page as a browser reads it: its elements, its tables, and what it would load."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

VOID = {"meta", "img", "br", "hr", "input", "link"}
IMPLIED = {"td": ("td", "th"), "th": ("td", "th"), "tr": ("td", "th", "tr")}
"""What the begin of an element ends: HTML asks for no end tags of cells and rows."""
LOADING = {"src", "srcset", "poster", "data", "background", "action", "formaction", "manifest"}


@dataclass
class Table:
    headings: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    scopes: list[tuple[str, str | None]] = field(default_factory=list)


class Page(HTMLParser):
    """`elements` are (tag, attributes); `text` is what is outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[Table] = []
        self.text = ""
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], "elements that are not closed"

    def _cells(self) -> list[str]:
        table = self.tables[-1]
        return table.rows[-1] if "tbody" in self._open else table.headings

    def handle_starttag(self, tag, attributes):
        while self._open and self._open[-1] in IMPLIED.get(tag, ()):
            self._open.pop()
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append(Table())
        if tag == "tr" and "tbody" in self._open:
            self.tables[-1].rows.append([])
        if tag in ("th", "td"):
            self.tables[-1].scopes.append((tag, dict(attributes).get("scope")))
            self._cells().append("")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        while tag in ("thead", "tbody", "table") and self._open[-1] in IMPLIED["tr"]:
            self._open.pop()
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "script" in self._open:
            self.scripts[-1] += data
        elif "style" not in self._open:
            self.text += data
        if "th" in self._open or "td" in self._open:
            self._cells()[-1] += data

    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if attributes.get("id")]

    def levels(self) -> list[int]:
        """Of the headings, in their order."""
        return [int(tag[1]) for tag, _ in self.elements if re.fullmatch("h[1-6]", tag)]


read = functools.lru_cache(maxsize=2)(Page)
"""A page, parsed once: of the results' it takes seconds."""


def loads(html: str) -> list[str]:
    """What a browser would fetch for this page: everything that is not part of it."""
    page = read(html)
    found = [tag for tag, _ in page.elements if tag in ("link", "iframe", "object", "embed", "base", "form")]
    for tag, attributes in page.elements:
        own = ((key, value or "") for key, value in attributes.items() if key in LOADING)
        found += [f"{tag} {key}={value}" for key, value in own if not value.startswith("data:")]
    for style in re.findall(r"<style>.*?</style>", html, re.DOTALL):
        found += re.findall(r"@import[^;]*|url\([^)]*\)", style)
    for script in page.scripts:
        found += re.findall(r"\b(?:fetch|XMLHttpRequest|importScripts|WebSocket|EventSource|sendBeacon)\b", script)
    return found


def dead_links(html: str, folder: Path) -> list[str]:
    """Addresses that lead nowhere: within the page, or to files beside it."""
    page = read(html)
    ids = set(page.ids())

    def leads(address: str) -> bool:
        if address.startswith("#"):
            return unquote(address[1:]) in ids
        return bool(re.match(r"https?:", address)) or (folder / unquote(address.partition("#")[0])).exists()

    return [attributes["href"] for tag, attributes in page.elements if tag == "a" and not leads(attributes["href"])]
