"""Build the documentation site: python docs/site/build.py [FOLDER]

Pages are the Markdown of this repository, and what is generated from the program: the reference of commands, and the
gallery of methods. They are put together in FOLDER/pages, and Zensical makes FOLDER/html of them. Nothing is fetched:
formulas are MathML before Zensical sees them, and no fonts are named.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from docs.site import commands, gallery  # noqa: E402

GENERATED: dict[str, Callable[[], str]] = {"commands-reference.md": commands.page, **gallery.pages()}
"""Pages that no file of the repository is, by their place in the site."""
ELSEWHERE = {"comt_cli/methods/README.md": "methods/index.md"}
"""Files that a generated page takes the place of."""
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()<?([^)\s>]+)>?((?:\s+\"[^\"]*\")?\))")
FENCE = re.compile(r"^(```+|~~~+)[^\n]*\n.*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)[^`].*?\1", re.DOTALL)
NOTE = re.compile(r"(?<![\\\]])\[(\d+)\](?!\()")
"""The number of a footnote, as tables have it: Markdown would take two for a link."""
FORMULA = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)


def build(folder: Path) -> Path:
    """Write the site below a folder; the path of its first page.

    Raises:
        SystemExit: Zensical found something wrong.
    """
    pages = folder / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    for source in sorted(committed_pages()):
        write(pages, place_of(source), with_links((ROOT / source).read_text(encoding="utf-8"), source, pages))
    for place, made in GENERATED.items():
        write(pages, place, with_links(made(), None, pages))
    for asset in ("site.css", "favicon.svg"):
        shutil.copy(Path(__file__).parent / asset, pages / asset)
    configuration = folder / "mkdocs.yml"
    text = (Path(__file__).parent / "mkdocs.yml").read_text(encoding="utf-8")
    configuration.write_text(text.replace("ROOT", str(ROOT)), encoding="utf-8")
    program = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(configuration)]
    done = subprocess.run(program, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return folder / "html" / "index.html"


def committed_pages() -> Iterator[str]:
    """The Markdown that becomes pages, by its path in the repository."""
    yield from ("README.md", "CONTRIBUTING.md")
    for top in ("docs", "recipes", "results"):
        for path in (ROOT / top).rglob("*.md"):
            yield path.relative_to(ROOT).as_posix()


def place_of(source: str) -> str:
    """Where a file of the repository is in the site."""
    place = source.removeprefix("docs/")
    return re.sub(r"(^|/)README\.md$", r"\1index.md", place)


def with_links(text: str, source: str | None, pages: Path) -> str:
    """A page's text whose links lead to pages of the site, and to copies of other files; formulas as MathML."""
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    def link(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if source is None or re.match(r"[a-z]+:|#", target):
            return match[0]
        name, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
        if path in ELSEWHERE:
            place = ELSEWHERE[path]
        elif path.endswith(".md"):
            place = place_of(path)
        else:
            place = f"files/{path}"
            copy(ROOT / path, pages / place)
        there = posixpath.relpath(place, posixpath.dirname(place_of(source)) or ".")
        return f"{before}{there}{'#' + anchor if anchor else ''}{after}"

    text = CODE.sub(keep, FENCE.sub(keep, text))
    text = FORMULA.sub(lambda match: mathml(match[1]), NOTE.sub(r"\\[\1\\]", LINK.sub(link, text)))
    while "\0" in text:
        text = re.sub("\0(\\d+)\0", lambda match: kept[int(match[1])], text)
    return text


def mathml(formula: str) -> str:
    """A formula of TeX as a block of MathML."""
    from latex2mathml.converter import convert

    return f'<div class="formula">{convert(formula.strip(), display="block")}</div>'


def copy(source: Path, target: Path) -> None:
    """Copy a file that pages link to; of a folder nothing."""
    if source.is_file() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def write(pages: Path, place: str, text: str) -> None:
    """Write one page."""
    (pages / place).parent.mkdir(parents=True, exist_ok=True)
    (pages / place).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs").resolve()))
