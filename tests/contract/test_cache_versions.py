"""What is derived and cached is named by a version, and the version changes with the code that makes it.

A run's id covers the content of its data, so a raised version makes nobody train anew whose data comes out the same: it
only has the data prepared again. Therefore: when in doubt, raise it. What can matter to text of one's own alone
(`files:`, `pairs:`), such as how its long lines are cut, may put a mark into the fingerprints of that instead: all
other data stays prepared.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from comt_cli.data.captions.prepare import CAPTION_FORMAT
from comt_cli.data.captions.scenes import SCENES_VERSION
from comt_cli.data.glue.prepare import GLUE_FORMAT
from comt_cli.data.glue.sentences import SENTENCES_VERSION
from comt_cli.data.glue.sources.scene_tasks import SCENE_TASKS_VERSION
from comt_cli.data.images.glyph_render import VERSION as GLYPH_VERSIONS
from comt_cli.data.images.prepare import FORMAT as IMAGE_FORMAT
from comt_cli.data.pairs.almanac_values import ALMANAC_VERSION
from comt_cli.data.pairs.record import PACKING, PAIR_FORMAT
from comt_cli.data.sentencepiece_tokenizer import VOCABULARY_VERSION
from comt_cli.data.text.corpora.python_library import EXTRACTOR_VERSION, SOURCE_VERSION
from comt_cli.data.text.vocabulary import FORMAT
from comt_cli.files import sha256

DATA = Path(__file__).parents[2] / "comt_cli" / "data"

# What makes it; the version it is cached under; the hash of that code when the version was last raised.
MADE = {
    "extracted texts": (
        ("text/corpora/python_library.py",),
        EXTRACTOR_VERSION,
        (3, "516c3e00e275d7e1"),
    ),
    "sources of the library": (
        ("text/corpora/python_library.py",),
        SOURCE_VERSION,
        (1, "516c3e00e275d7e1"),
    ),
    # Named by the version of token shards, too: what reads the texts is among those.
    "vocabularies": (
        ("sentencepiece_tokenizer.py", "text/corpus.py", "text/vocabulary.py"),
        VOCABULARY_VERSION,
        (2, "cf0dfee8ce820101"),
    ),
    "token shards": (
        (
            *(
                "text/tokenise.py",
                "text/shards.py",
                "text/dataset.py",
                "text/corpus.py",
                "text/prepare.py",
                "text/record.py",
            ),
            *("text/vocabulary.py", "text/t5.py", "text/corpora/hub_text.py", "text/corpora/wikitext.py"),
            *("text/corpora/local_files.py", "hub.py", "tokenizer.py", "tokenizers.py", "prepared.py"),
        ),
        FORMAT,
        (4, "27e644ff69111363"),
    ),
    # Its carriers are no code; their hash is part of every fingerprint.
    "sentences of the almanac": (
        ("pairs/corpora/almanac.py", "pairs/almanac_carriers.py", "pairs/almanac_values.py", "draws.py", "order.py"),
        ALMANAC_VERSION,
        (1, "fe907fb87bdc6fcb"),
    ),
    "prepared pairs": (
        (
            *("pairs/corpus.py", "pairs/corpora/text_files.py", "pairs/corpora/gettext_catalogues.py"),
            *(
                "pairs/corpora/published.py",
                "pairs/prepare.py",
                "pairs/record.py",
                "pairs/writing.py",
                "pairs/dataset.py",
            ),
            *("text/corpus.py", "hub.py", "tokenizer.py", "tokenizers.py", "prepared.py"),
        ),
        PAIR_FORMAT,
        (1, "794ccd53accdd338"),
    ),
    "scenes and their captions": (
        (
            *("captions/scene_words.py", "captions/scenes.py", "captions/scene_render.py", "draws.py"),
            *("images/glyph_faces.py", "order.py"),
        ),
        SCENES_VERSION,
        (1, "e90ab81a9a0a2ec9"),
    ),
    "prepared captions": (
        (
            *("captions/corpus.py", "captions/corpora/mscoco.py", "captions/corpora/scenes.py", "captions/treebank.py"),
            *("captions/prepare.py", "captions/dataset.py", "captions/regions.py"),
            *("token_lists.py", "order.py", "word_tokenizer.py", "tokenizers.py", "prepared.py"),
        ),
        CAPTION_FORMAT,
        (1, "5c4f4edea81f805d"),
    ),
    "examples of two descriptions": (
        ("glue/sources/scene_tasks.py", "captions/scene_words.py", "captions/scenes.py", "draws.py", "order.py"),
        SCENE_TASKS_VERSION,
        (1, "b4653feb11400308"),
    ),
    "examples of sentences": (
        ("glue/sentences.py", "glue/sources/text_tasks.py", "text/corpus.py", "draws.py", "order.py"),
        SENTENCES_VERSION,
        (2, "548a0922cea14fa4"),
    ),
    "prepared examples": (
        (
            *("glue/corpus.py", "glue/prepare.py", "glue/dataset.py", "glue/sources/published.py"),
            *("text/corpus.py", "token_lists.py", "tokenizer.py", "tokenizers.py", "prepared.py"),
        ),
        GLUE_FORMAT,
        (2, "e6f7ef692f5934ce"),
    ),
    # Not cached, but a part of the ids of runs.
    "buckets of pairs": (
        ("pairs/dataset.py", "token_lists.py", "pairs/buckets.py", "order.py"),
        PACKING,
        (1, "099b2dcab38130fb"),
    ),
    "rendered letters": (
        (
            *("images/sets/glyphs.py", "images/glyph_faces.py", "images/glyph_render.py"),
            "order.py",
        ),
        GLYPH_VERSIONS,
        ({"glyphs10": 2, "glyphs100": 3}, "06755083abbeeb43"),
    ),
    "contents of image folders": (
        (*("images/prepare.py", "images/image_set.py", "images/sets/cifar.py", "images/sets/imagenet.py"),),
        IMAGE_FORMAT,
        (4, "34c523f83f23b839"),
    ),
}


def code(source: str) -> str:
    """The lines of a module that are neither blank, nor comments, nor docstrings, without trailing spaces."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str):
                lines[statement.lineno - 1 : statement.end_lineno] = [""] * (
                    (statement.end_lineno or statement.lineno) - statement.lineno + 1
                )
    return "\n".join(line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


def code_hash(files: tuple[str, ...]) -> str:
    return sha256("\0".join(code((DATA / file).read_text(encoding="utf-8")) for file in files))[:16]


@pytest.mark.parametrize("what", MADE)
def test_a_version_changes_with_the_code_that_makes_what_is_cached(what):
    files, version, (recorded_version, recorded_hash) = MADE[what]
    found = code_hash(files)
    assert (version, found) == (recorded_version, recorded_hash), (
        f"the code that makes {what} was changed ({', '.join(files)}), and its cache would not notice: raise the "
        f"version of {what}, which is {version}, and write the new one with {found!r} here"
    )


def test_only_code_counts():
    source = '"""Doc."""\n\n# why\ndef f(x):\n    """What.\n\n    More.\n    """\n    return x  \n'
    assert code(source) == "def f(x):\n    return x"
    assert code(source) == code(source.replace("More", "Less").replace("# why\n", ""))
    assert code(source) != code(source.replace("return x", "return -x"))
