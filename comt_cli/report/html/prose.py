"""Markdown pages of a results folder as parts of one HTML page, and the figures in it."""

from __future__ import annotations

import base64
import io
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from comt_cli.files import read_bytes, sha256
from comt_cli.report import format
from comt_cli.report.written import Reader

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
"""HTML in a text is escaped: recipes, and so names of rows, may come from others."""
_LEVEL = 4  # the level of a section's headings: of second-level headings in its Markdown
_WIDEST = 960  # pixels: the width of the page without its contents. The files have more
_COLOURS = 32, 48, 96  # tried in this order
_LARGEST_DIFFERENCE = 2.0
"""The largest difference between a figure and its version with few colours: the mean over its pixels, of 255, in red,
green or blue."""
_FIGURE = Markup(
    '<figure id="{name}"><div class="paper"><img src="{source}" alt="{alt}" width="{width}" height="{height}" '
    'loading="lazy" decoding="async" data-source="{name}" data-sha256="{hash}"></div>'
    '<figcaption>{title} <a href="{name}">{name}</a>{more}</figcaption></figure>'
)
_MORE = Markup("<details><summary>What it shows, and how to read it</summary>{}</details>")


class Prose:
    """Renders Markdown, and embeds each figure at its first occurrence; later ones become links. `sections` has the ids
    of the page's sections of Markdown files, by their path below `results`: links to them lead there, others to the
    files next to the page. `shown` are the PNG files on the page so far."""

    def __init__(self, reader: Reader, results: Path, sections: Mapping[str, str]) -> None:
        self.reader, self.results, self.sections = reader, results, sections
        self.shown: set[Path] = set()

    def html(self, text: str, folder: Path | None = None, title: str = "") -> Markup:
        """The HTML of a text without its own title; see `parts`."""
        return self.parts(text, folder, title)[1]

    def parts(self, text: str, folder: Path | None = None, title: str = "") -> tuple[str, Markup]:
        """The title (the first first-level heading as plain text, or the given one) and the HTML of the rest. Relative
        addresses are relative to `folder`, by default the results."""
        tokens, folder = _MARKDOWN.parse(text), folder or self.results
        if len(tokens) > 2 and tokens[0].tag == "h1":
            title, tokens = _plain(tokens[1]), tokens[3:]
        for token in tokens:
            if token.type in ("heading_open", "heading_close"):
                token.tag = f"h{min(6, int(token.tag[1]) + _LEVEL - 2)}"
            for child in token.children or ():
                if child.type == "link_open":
                    child.attrSet("href", self._address(str(child.attrGet("href")), folder))
        tokens = list(self._with_figures(tokens, folder))
        _mark_tables(tokens, title or "Overview")
        return title, Markup(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))

    def _below(self, href: str, folder: Path) -> str:
        path = posixpath.join(folder.relative_to(self.results).as_posix(), unquote(href.partition("#")[0]))
        return posixpath.normpath(path)

    def _address(self, href: str, folder: Path) -> str:
        if re.match(r"[a-z][a-z0-9+.-]*:|/|#", href, re.IGNORECASE):
            return href
        path = self._below(href, folder)
        return f"#{quote(self.sections[path])}" if path in self.sections else quote(path, safe="/+-._")

    def _with_figures(self, tokens: list[Token], folder: Path) -> Iterator[Token]:
        """An image in a paragraph of its own becomes a figure, another one its text: the page loads nothing."""
        for position, token in enumerate(tokens):
            image = _lone_image(token)
            if image is not None:
                source = str(image.attrGet("src"))
                path = self.results / self._below(source, folder)
                is_ours = path.suffix == ".png" and path.resolve().is_relative_to(self.results.resolve())
                is_shown = is_ours and path.is_file() and ":" not in source
                missing = Markup("<p>Image: {}</p>").format(source)
                yield _block(self.figure(path, image.content) if is_shown else missing)
            elif not any(_lone_image(near) for near in tokens[max(0, position - 1) : position + 2]):
                for child in token.children or ():
                    if child.type == "image":
                        child.type, child.content = "text", f"{child.content} ({child.attrGet('src')})"
                yield token

    def figure(self, path: Path, caption: str = "") -> Markup:
        """The HTML of a PNG below the results folder, with the text file next to it as caption. An unreadable picture
        is left out."""
        name = path.relative_to(self.results).as_posix()
        if path in self.shown:
            return Markup('<p>Figure: <a href="#{0}">{0}</a>.</p>').format(name)
        self.shown.add(path)
        try:
            content = read_bytes(path)
            source, width, height = embedded(content)
        except Exception as error:  # Pillow raises many kinds
            self.reader.leave_out(path, error)
            return Markup("<p>Figure: {} cannot be read.</p>").format(name)
        title, dot, rest = (self.reader.text(path.with_suffix(".txt")).strip() or caption).partition(". ")
        return _FIGURE.format(name=name, source=source, alt=format.one_line(title or path.stem), width=width,
                              height=height, hash=sha256(content)[:12], title=f"{title}{dot}",
                              more=_MORE.format(rest) if rest else "")  # fmt: skip


def size_on_page(size: tuple[int, int]) -> tuple[int, int]:
    """Width and height of a picture on a page."""
    width = min(_WIDEST, size[0])
    return width, round(size[1] * width / size[0])


def embedded(png: bytes) -> tuple[str, int, int]:
    """A PNG as the address of a WebP, a sixth of its size; width and height in pixels.

    Lossless with few colours, which suffice for lines and letters; otherwise, as for photographs, lossy with all
    colours. The bytes may differ with the version of libwebp.
    """
    from PIL import Image, ImageChops, ImageStat

    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        opaque = Image.new("RGBA", image.size, "white")
        opaque.alpha_composite(image.convert("RGBA"))
    drawn = opaque.convert("RGB")
    if drawn.size != (size := size_on_page(drawn.size)):
        drawn = drawn.resize(size, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    for colours in _COLOURS:
        # By numbers of pixels, the usual choice, thin lines get the colours of bands; without means pale bands vanish.
        few = drawn.quantize(colours, method=Image.Quantize.MAXCOVERAGE, kmeans=2).convert("RGB")
        if max(ImageStat.Stat(ImageChops.difference(drawn, few)).mean) <= _LARGEST_DIFFERENCE:
            few.save(file, "WEBP", lossless=True, quality=100, method=4)
            break
    else:
        drawn.save(file, "WEBP", quality=60)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}", drawn.width, drawn.height


def _lone_image(token: Token) -> Token | None:
    children = token.children or []
    return children[0] if len(children) == 1 and children[0].type == "image" else None


def _plain(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())


def _block(html: Markup) -> Token:
    return Token("html_block", "", 0, content=str(html))


def _mark_tables(tokens: list[Token], title: str) -> None:
    """Mark the cells of tables for browsers: headings and their scope, texts, and verdicts."""
    headings: list[str] = []
    column, label, in_head = 0, title, False
    for position, token in enumerate(tokens):
        match token.type:
            case "heading_open":
                label = f"{title}, {_plain(tokens[position + 1])}"
            case "table_open":
                opened = Markup('<div class="scroll" role="region" tabindex="0" aria-label="{}"><table>').format(label)
                tokens[position], headings = _block(opened), []
            case "table_close":
                tokens[position] = _block(Markup("</table></div>"))
            case "thead_open" | "tbody_open":
                in_head = token.type == "thead_open"
            case "tr_open":
                column = -1
            case "th_open" | "td_open":
                column += 1
                text = _plain(tokens[position + 1])
                if "right" not in str(token.attrs.pop("style", "")):
                    token.attrSet("class", "t")
                if in_head:
                    token.attrSet("scope", "col")
                    headings.append(text)
                elif column == 0:
                    token.tag, tokens[position + 2].tag = "th", "th"
                    token.attrs = {"scope": "row"}
                elif headings[column] == "verdict":
                    name = re.sub(r"[^a-z]+", "-", text.lower()).strip("-")
                    token.attrSet("class", f"verdict {name}")  # for a colour; the words say the same
