"""Build the documentation site: python docs/site/build.py [FOLDER]

Pages are the Markdown of this repository and three generated ones: the command reference, the Python API and the method
gallery. They are collected in FOLDER/pages, and Zensical makes FOLDER/html from them. Nothing is fetched: formulas
become MathML first, and the theme uses the reader's fonts.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from docs.site import gallery, reference  # noqa: E402

GENERATED: dict[str, Callable[[], str]] = {
    "commands-reference.md": reference.command_page,
    "api.md": reference.api_page,
    "methods/index.md": gallery.page,
}
"""Generated pages by their path in the site."""
ELSEWHERE = {"comt_cli/methods/README.md": "methods/index.md", "results/index.html": "results/index.md"}
"""Files that another page replaces in the site."""
ARCHIVES = (".tar.xz",)
"""Files that stay in the repository, as folders do: links to them become text."""
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()<?([^)\s>]+)>?((?:\s+\"[^\"]*\")?\))")
FENCE = re.compile(r"^(```+|~~~+)[^\n]*\n.*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)[^`].*?\1", re.DOTALL)
NOTE = re.compile(r"(?<![\\\]])\[(\d+)\](?!\()")
"""The number of a footnote in a table: Markdown takes two of them for a link."""
NAVIGATION = re.compile(r"^( *)- ([^:\n]+): (\S+(?:\.md|/))\n", re.MULTILINE)
FORMULA = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)


def build(folder: Path) -> Path:
    """Write the site below a folder and return the path of its first page.

    Raises:
        SystemExit: Zensical reported a problem.
    """
    pages = folder / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    for source, text in sources().items():
        page = pages / place_of(source)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(with_links(text, source, pages), encoding="utf-8")
    for asset in ("site.css", "favicon.svg"):
        shutil.copy(Path(__file__).parent / asset, pages / asset)
    configuration = folder / "mkdocs.yml"
    text = (Path(__file__).parent / "mkdocs.yml").read_text(encoding="utf-8").replace("ROOT", str(ROOT))
    configuration.write_text(navigation(text, pages), encoding="utf-8")
    program = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(configuration)]
    done = subprocess.run(program, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return folder / "html" / "index.html"


def navigation(text: str, pages: Path) -> str:
    """The configuration without navigation entries of absent pages, and with every page of the folders in it."""

    def entry(match: re.Match[str]) -> str:
        indent, title, path = match.groups()
        if path.endswith(".md"):
            return match[0] if (pages / path).is_file() else ""
        names = [page.relative_to(pages / path).as_posix()[:-3] for page in (pages / path).rglob("*.md")]
        names.sort(key=lambda name: re.sub(r"\bindex$", "", name))
        titles = [re.sub("/index$", ", notes", name) if name != "index" else "Overview" for name in names]
        inner = [f"{indent}    - {title}: {path}{name}.md" for title, name in zip(titles, names, strict=True)]
        return "\n".join([f"{indent}- {title}:", *inner, ""]) if inner else ""

    return NAVIGATION.sub(entry, text)


def sources() -> dict[str, str]:
    """The Markdown of every page by its path in the repository; generated pages have paths in docs/."""
    paths = [path for top in ("docs", "recipes", "results") for path in (ROOT / top).rglob("*.md")]
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(paths)]
    committed = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return committed | {f"docs/{place}": made() for place, made in GENERATED.items()}


def place_of(source: str) -> str:
    """The path in the site of a file of the repository."""
    place = source.removeprefix("docs/")
    return re.sub(r"(^|/)README\.md$", r"\1index.md", place)


def with_links(text: str, source: str, pages: Path) -> str:
    """Point a page's links at pages of the site and at copies of other files, and write its formulas as MathML."""
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    def link(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        name, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
        if path.endswith(ARCHIVES) or (ROOT / path).is_dir():
            return f"{before[1:-2]} (`{path}`)"
        if path in ELSEWHERE:
            place = ELSEWHERE[path]
        elif path.endswith(".md"):
            place = place_of(path)
        else:
            place = f"files/{path.lstrip('.')}"
            (pages / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, pages / place)
        there = posixpath.relpath(place, posixpath.dirname(place_of(source)) or ".")
        return f"{before}{there}{'#' + anchor if anchor else ''}{after}"

    text = CODE.sub(keep, FENCE.sub(keep, text))
    text = FORMULA.sub(lambda match: mathml(match[1]), NOTE.sub(r"\\[\1\\]", LINK.sub(link, text)))
    while "\0" in text:
        text = re.sub("\0(\\d+)\0", lambda match: kept[int(match[1])], text)
    return text


def mathml(formula: str) -> str:
    """Convert a TeX formula to MathML: a block for each part between wide spaces, with words in indices upright."""
    from latex2mathml.converter import convert

    formula = re.sub(r"_\{([a-z]{3,}|in)\}", r"_{\\text{\1}}", formula.strip())
    parts = (convert(part, display="block") for part in re.split(r"\\q?quad", formula))
    return f'<div class="formula">{"".join(parts)}</div>'


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs").resolve()))
