"""The figures of a results folder, embedded in a page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from markupsafe import Markup

from comt_cli.files import read_bytes, sha256
from comt_cli.report import format
from comt_cli.report.written import Reader

WIDEST = 960
"""Pixels: what a page has room for beside its contents. The files have more."""
_COLOURS = 32, 48, 96
"""The fewest that will do."""
_LARGEST_DIFFERENCE = 2.0
"""Between a figure and itself in few colours: the mean over its pixels, of 255, in any of red, green and blue."""
_HASH_DIGITS = 12
_MORE = Markup("<details><summary>What it shows, and how to read it</summary>{}</details>")
_FIGURE = Markup(
    '<figure id="{name}"><div class="paper"><img src="{source}" alt="{alt}" width="{width}" height="{height}" '
    'loading="lazy" decoding="async" data-source="{name}" data-sha256="{hash}"></div>'
    '<figcaption>{title} <a href="{name}">{name}</a>{more}</figcaption></figure>'
)


class Pictures:
    """The figures of one page. Each is embedded where it comes first; where it comes again, a link leads there.

    `shown` are the PNG files that the page has so far.
    """

    def __init__(self, results: Path, reader: Reader) -> None:
        self.results, self.reader = results, reader
        self.shown: set[Path] = set()

    def figure(self, path: Path, caption: str = "") -> Markup:
        """The HTML of a PNG below the results folder. The text file beside it, if there is one, is its caption. One
        that cannot be read as a picture is left out."""
        name = path.relative_to(self.results).as_posix()
        if path in self.shown:
            return Markup('<p>Figure: <a href="#{0}">{0}</a>.</p>').format(name)
        self.shown.add(path)
        text = self.reader.text(path.with_suffix(".txt")).strip() or caption
        try:
            content = read_bytes(path)
            source, width, height = embedded(content)
        except Exception as error:  # Pillow's are of many kinds
            self.reader.leave_out(path, error)
            return Markup("<p>Figure: {} cannot be read.</p>").format(name)
        title, dot, rest = text.partition(". ")
        return _FIGURE.format(
            name=name,
            source=source,
            alt=format.one_line(title or path.stem),
            width=width,
            height=height,
            hash=sha256(content)[:_HASH_DIGITS],
            title=f"{title}{dot}",
            more=_MORE.format(rest) if rest else "",
        )


def size_on_page(size: tuple[int, int]) -> tuple[int, int]:
    """Width and height that a picture of this size has on a page."""
    width = min(WIDEST, size[0])
    return width, round(size[1] * width / size[0])


def embedded(png: bytes) -> tuple[str, int, int]:
    """A PNG as the address of a WebP, a sixth of its size; width and height in pixels.

    Lossless with few colours, which are enough for lines and letters; where they are not, as for photographs, lossy
    with all. The bytes may differ with the version of libwebp.
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
