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

from comt_cli.data.captions.dataset import CAPTION_FORMAT
from comt_cli.data.captions.scenes import SCENES_VERSION
from comt_cli.data.glue.dataset import GLUE_FORMAT
from comt_cli.data.glue.scene_tasks import SCENE_TASKS_VERSION
from comt_cli.data.glue.sentences import SENTENCES_VERSION
from comt_cli.data.identity import FORMAT
from comt_cli.data.images.glyph_render import VERSION as GLYPH_VERSIONS
from comt_cli.data.images.prepare import FORMAT as IMAGE_FORMAT
from comt_cli.data.pairs.almanac_values import ALMANAC_VERSION
from comt_cli.data.pairs.record import PACKING, PAIR_FORMAT
from comt_cli.data.python_docs import EXTRACTOR_VERSION
from comt_cli.data.python_source import SOURCE_VERSION
from comt_cli.data.sentencepiece_tokenizer import VOCABULARY_VERSION
from comt_cli.files import sha256

DATA = Path(__file__).parents[2] / "comt_cli" / "data"

# What makes it; the version it is cached under; the hash of that code when the version was last raised.
MADE = {
    "extracted texts": (
        ("python_docs.py", "python_library.py"),
        EXTRACTOR_VERSION,
        (3, "1392e841debad421"),
    ),
    "sources of the library": (
        ("python_source.py", "python_library.py"),
        SOURCE_VERSION,
        (1, "f9ce6cf800e3a575"),
    ),
    # Named by the version of token shards, too: what reads the texts is among those.
    "vocabularies": (
        ("sentencepiece_tokenizer.py", "corpus.py"),
        VOCABULARY_VERSION,
        (2, "43d75143e60e0a01"),
    ),
    "token shards": (
        (
            *(
                "tokenise.py",
                "shards.py",
                "dataset.py",
                "corpus.py",
                "corpora.py",
                "tokenizer.py",
                "tokenizers.py",
                "t5.py",
                "hub.py",
                "wikitext.py",
            ),
            *("local_files.py", "identity.py", "prepare.py"),
        ),
        FORMAT,
        (4, "98afe7cdec884b7b"),
    ),
    # Its carriers are no code; their hash is part of every fingerprint.
    "sentences of the almanac": (
        (
            *("pairs/almanac.py", "pairs/almanac_carriers.py", "pairs/almanac_draws.py", "pairs/almanac_values.py"),
            "order.py",
        ),
        ALMANAC_VERSION,
        (1, "d8f254b1503ae86d"),
    ),
    "prepared pairs": (
        (
            *("pairs/corpora.py", "pairs/corpus.py", "pairs/text_files.py", "pairs/gettext_catalogues.py"),
            *("pairs/hub_pairs.py", "pairs/prepare.py", "pairs/record.py", "pairs/writing.py", "pairs/dataset.py"),
            *("corpus.py", "tokenizer.py", "tokenizers.py"),
        ),
        PAIR_FORMAT,
        (1, "5a313eb6dbeebde6"),
    ),
    "scenes and their captions": (
        (
            *("captions/scene_words.py", "captions/scenes.py", "captions/scene_render.py", "pairs/almanac_draws.py"),
            *("images/glyph_faces.py", "order.py"),
        ),
        SCENES_VERSION,
        (1, "0afed0a06183b3b2"),
    ),
    "prepared captions": (
        (
            *("captions/corpus.py", "captions/mscoco.py", "captions/treebank.py", "captions/vocabulary.py"),
            *("captions/dataset.py", "captions/batches.py", "captions/regions.py", "pair_batches.py", "order.py"),
            *("word_tokenizer.py", "tokenizers.py"),
        ),
        CAPTION_FORMAT,
        (1, "8bdbc99967913048"),
    ),
    "examples of two descriptions": (
        (
            *("glue/scene_tasks.py", "captions/scene_words.py", "captions/scenes.py", "pairs/almanac_draws.py"),
            "order.py",
        ),
        SCENE_TASKS_VERSION,
        (1, "6c6adb4e40ec0194"),
    ),
    "examples of sentences": (
        ("glue/sentences.py", "glue/text_tasks.py", "corpus.py", "pairs/almanac_draws.py", "order.py"),
        SENTENCES_VERSION,
        (2, "6f897d1f55de70ee"),
    ),
    "prepared examples": (
        (
            *(
                "glue/corpus.py",
                "glue/dataset.py",
                "glue/batches.py",
                "glue/published.py",
                "corpus.py",
                "pair_batches.py",
            ),
            *("tokenizer.py", "tokenizers.py"),
        ),
        GLUE_FORMAT,
        (2, "9865e202dd7db6c6"),
    ),
    # Not cached, but a part of the ids of runs.
    "buckets of pairs": (
        ("pair_batches.py", "buckets.py", "order.py"),
        PACKING,
        (1, "f8e6ffce97ddb372"),
    ),
    "rendered letters": (
        ("images/glyphs.py", "images/glyph_faces.py", "images/glyph_render.py", "images/statistics.py", "order.py"),
        GLYPH_VERSIONS,
        ({"glyphs10": 2, "glyphs100": 3}, "104732bb3204b1f0"),
    ),
    "contents of image folders": (
        ("images/prepare.py", "images/cifar.py", "images/imagenet.py", "images/subset.py", "images/statistics.py"),
        IMAGE_FORMAT,
        (4, "86478f55d71f5aa1"),
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
