"""Markdown pages of a results folder as parts of one HTML page."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from comt_cli.report.html.pictures import Pictures

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
"""HTML in a text is shown, not obeyed: recipes, and so names of rows, may be a stranger's."""


class Prose:
    """Renders Markdown. `sections` says of which Markdown files, by their path below `results`, the page has a section,
    and its id: links to them lead there. Other relative links lead to the files beside the page."""

    def __init__(self, results: Path, sections: Mapping[str, str], pictures: Pictures) -> None:
        self.results, self.sections, self.pictures = results, sections, pictures

    def parts(self, text: str, folder: str, level: int) -> tuple[str, Markup]:
        """The title (the first heading of the first level, as plain text) and the HTML of the rest.

        Its second-level headings become those of `level`. Relative addresses in it are relative to `folder`, a path
        below the results.
        """
        title, tokens = self._tokens(text, folder, level)
        return title, _rendered(tokens)

    def table_page(self, text: str, folder: str, level: int) -> tuple[str, Markup, Markup]:
        """The same of a page of a table, and apart from it what explains it: all paragraphs before its first table and
        all lists, but the line in italics that says what was trained."""
        title, tokens = self._tokens(text, folder, level)
        shown: list[Token] = []
        explaining: list[Token] = []
        block: list[Token] = []
        begun = False
        for token in tokens:
            block.append(token)
            if token.level == 0 and token.nesting <= 0:
                begun = begun or block[0].type in ("heading_open", "html_block")
                is_subtitle = any(child.type == "em_open" for each in block[1:2] for child in (each.children or ())[:2])
                is_explaining = block[0].type == "bullet_list_open" or not (begun or is_subtitle)
                (explaining if is_explaining else shown).extend(block)
                block = []
        return title, _rendered(shown + block), _rendered(explaining)

    def _tokens(self, text: str, folder: str, level: int) -> tuple[str, list[Token]]:
        tokens = _MARKDOWN.parse(text)
        title = ""
        if len(tokens) > 2 and tokens[0].tag == "h1":
            title = _plain(tokens[1])
            tokens = tokens[3:]
        for token in tokens:
            if token.type in ("heading_open", "heading_close"):
                token.tag = f"h{min(6, int(token.tag[1]) + level - 2)}"
            for child in token.children or ():
                if child.type == "link_open":
                    child.attrSet("href", self._address(str(child.attrGet("href")), folder))
        tokens = list(self._with_figures(tokens, folder))
        _mark_tables(tokens, title or "Overview")
        return title, tokens

    def _address(self, href: str, folder: str) -> str:
        if re.match(r"[a-z][a-z0-9+.-]*:|/|#", href, re.IGNORECASE):
            return href
        path = _below(href, folder)
        return f"#{quote(self.sections[path])}" if path in self.sections else quote(path, safe="/+-._")

    def _with_figures(self, tokens: list[Token], folder: str) -> Iterator[Token]:
        """An image that is a paragraph of its own becomes a figure, another one its words: a page loads nothing."""
        for position, token in enumerate(tokens):
            image = _lone_image(token)
            if image is not None:
                yield _block(self._figure(str(image.attrGet("src")), image.content, folder))
            elif not any(_lone_image(near) for near in tokens[max(0, position - 1) : position + 2]):
                for child in token.children or ():
                    if child.type == "image":
                        child.type, child.content = "text", f"{child.content} ({child.attrGet('src')})"
                yield token

    def _figure(self, source: str, caption: str, folder: str) -> Markup:
        path = self.results / _below(source, folder)
        is_ours = path.suffix == ".png" and path.resolve().is_relative_to(self.results.resolve()) and path.is_file()
        if is_ours and ":" not in source:
            return self.pictures.figure(path, caption)
        return Markup("<p>Image: {}</p>").format(source)


def _below(href: str, folder: str) -> str:
    """The path below the results that a relative address in a folder there means."""
    return posixpath.normpath(posixpath.join(folder, unquote(href.partition("#")[0])))


def _rendered(tokens: list[Token]) -> Markup:
    return Markup(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))


def _lone_image(token: Token) -> Token | None:
    children = token.children or []
    return children[0] if len(children) == 1 and children[0].type == "image" else None


def _plain(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def _block(html: Markup) -> Token:
    return Token("html_block", "", 0, content=str(html))


def _mark_tables(tokens: list[Token], title: str) -> None:
    """Say of tables what browsers cannot know: which cells are headings, and of what; which are texts, and verdicts."""
    column, verdict, in_head = 0, -1, False
    heading = title
    for position, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = f"{title}, {_plain(tokens[position + 1])}"
        elif token.type == "table_open":
            label = Markup('<div class="scroll" role="region" tabindex="0" aria-label="{}"><table>').format(heading)
            tokens[position] = _block(label)
        elif token.type == "table_close":
            tokens[position] = _block(Markup("</table></div>"))
        elif token.type in ("thead_open", "tbody_open"):
            in_head = token.type == "thead_open"
            verdict = -1 if in_head else verdict
        elif token.type == "tr_open":
            column = -1
        elif token.type in ("th_open", "td_open"):
            column += 1
            if "right" not in str(token.attrs.pop("style", "")):
                token.attrSet("class", "t")
            text = _plain(tokens[position + 1])
            if in_head:
                token.attrSet("scope", "col")
                verdict = column if text == "verdict" else verdict
            elif column == 0:
                token.tag, tokens[position + 2].tag = "th", "th"
                token.attrs = {"scope": "row"}
            elif column == verdict:
                name = re.sub(r"[^a-z]+", "-", text.lower()).strip("-")
                token.attrSet("class", f"verdict {name}")  # for a colour; its words say the same
