"""Derived data that is cached is named by a version, and the version changes with the code that makes it.

A run's id covers the content of its data, so a raised version makes nobody train anew whose data comes out the same: it
only has the data prepared again. When in doubt, raise it. What can matter to the user's own text alone (`files:`,
`pairs:`) may put a mark into the fingerprints of that instead: all other data stays prepared.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from comt_cli.data.captions.corpora.scenes import SCENES_VERSION
from comt_cli.data.captions.settings import CAPTION_FORMAT
from comt_cli.data.glue.settings import GLUE_FORMAT
from comt_cli.data.glue.sources.scene_tasks import SCENE_TASKS_VERSION
from comt_cli.data.glue.sources.text_tasks import SENTENCES_VERSION
from comt_cli.data.images.sets.glyphs import VERSION as GLYPH_VERSIONS
from comt_cli.data.images.settings import FORMAT as IMAGE_FORMAT
from comt_cli.data.pairs.corpora.almanac import ALMANAC_VERSION
from comt_cli.data.pairs.settings import PACKING, PAIR_FORMAT
from comt_cli.data.text.corpora.python_library import EXTRACTOR_VERSION, SOURCE_VERSION
from comt_cli.data.text.settings import FORMAT
from comt_cli.data.tokenizer import VOCABULARY_VERSION
from comt_cli.files import sha256

DATA = Path(__file__).parents[2] / "comt_cli" / "data"

# What makes it (files of a folder behind its colon); the version it is cached under; the hash of that code when the
# version was last raised.
MADE = {
    "extracted texts": ("text/corpora: python_library", EXTRACTOR_VERSION, (3, "827f9ad6fb7f250f")),
    "sources of the library": ("text/corpora: python_library", SOURCE_VERSION, (1, "827f9ad6fb7f250f")),
    # Named by the version of token shards, too: what reads the texts is among those.
    "vocabularies": (
        ".: tokenizer tokenizer_files; text: settings splits",
        VOCABULARY_VERSION,
        (2, "796deb71dc331b4e"),
    ),
    "token shards": (
        ".: hub tokenizer tokenizer_files gguf_files published prepare; text: columns dataset settings splits; "
        "text/corpora: hub_data_sets hub_text local_files token_files",
        FORMAT,
        (4, "51301bb5765b0970"),
    ),
    # Its carriers are no code; their hash is part of every fingerprint.
    "sentences of the almanac": (
        ".: draws order; pairs: almanac_values; pairs/corpora: almanac",
        ALMANAC_VERSION,
        (1, "40ddeb713a782997"),
    ),
    "prepared pairs": (
        ".: hub tokenizer prepare; text: settings; pairs: dataset settings; "
        "pairs/corpora: gettext_catalogues published",
        PAIR_FORMAT,
        (1, "9869c48a1891a7c1"),
    ),
    "scenes and their captions": (
        ".: draws order; images/sets: glyphs; captions: words; captions/corpora: scenes",
        SCENES_VERSION,
        (1, "48d6f279acbf4eb8"),
    ),
    "prepared captions": (
        ".: split order tokenizer prepare; captions: dataset settings words; captions/corpora: mscoco scenes",
        CAPTION_FORMAT,
        (1, "ee751a0ec96d043c"),
    ),
    "examples of two descriptions": (
        ".: draws order; captions: words; glue/sources: scene_tasks",
        SCENE_TASKS_VERSION,
        (1, "75bc6a7fe5eeedc7"),
    ),
    "examples of sentences": (
        ".: draws order; text: settings splits; glue/sources: text_tasks",
        SENTENCES_VERSION,
        (2, "dc8c15764d83bf18"),
    ),
    "prepared examples": (
        ".: split tokenizer prepare; text: settings; glue: dataset settings; glue/sources: published",
        GLUE_FORMAT,
        (2, "e1b9f6d82ac89996"),
    ),
    # Not cached, but a part of the ids of runs.
    "buckets of pairs": (".: split order; pairs: dataset", PACKING, (1, "63a00fd3db0355ec")),
    "rendered letters": (
        ".: order; images: dataset; images/sets: glyphs",
        GLYPH_VERSIONS,
        ({"glyphs10": 2, "glyphs100": 3}, "b3ceea4368d6e909"),
    ),
    "contents of image folders": (
        "images: settings; images/sets: cifar imagenet",
        IMAGE_FORMAT,
        (4, "d7a14c40747f84d7"),
    ),
}


def code(source: str) -> str:
    """The lines of a module that are neither blank, nor comments, nor docstrings, without trailing spaces."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            begin, end = node.lineno - 1, node.end_lineno or node.lineno
            lines[begin:end] = [""] * (end - begin)
    return "\n".join(line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


def code_hash(said):
    folders = (each.split(": ") for each in said.split("; "))
    paths = [DATA / folder / f"{name}.py" for folder, names in folders for name in names.split()]
    return sha256("\0".join(code(path.read_text(encoding="utf-8")) for path in paths))[:16]


@pytest.mark.parametrize("what", MADE)
def test_a_version_changes_with_the_code_that_makes_what_is_cached(what):
    files, version, (recorded_version, recorded_hash) = MADE[what]
    found = code_hash(files)
    assert (version, found) == (recorded_version, recorded_hash), (
        f"the code that makes {what} was changed ({files}), and its cache would not notice: raise the "
        f"version of {what}, which is {version}, and write the new one with {found!r} here"
    )
