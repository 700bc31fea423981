"""The tokens of English captions, nearly as the Penn Treebank's rules cut them: for MSCOCO, without Java and NLTK.

Lower case; `don't` is `do n't` and `it's` is `it 's`; words keep hyphens, dots, slashes and ampersands within them,
numbers dots, commas and colons; every other character that is no letter, digit or space is a token of its own. Unlike
Stanford's PTBTokenizer and NLTK's `word_tokenize`, an abbreviation loses its last dot, `cannot` and `gonna` stay whole,
an ellipsis is three dots, brackets and quotes keep their form, and emoticons fall apart.
"""

from __future__ import annotations

import re

PUNCTUATION = frozenset(".,:;?!-'\"`()[]{}“”‘…–—")
"""Tokens that COCO's evaluation leaves out; it keeps brackets, by mistake, as `-lrb-`."""

_TOKEN = re.compile(r"\d+(?:[.,:]\d+)+|\w+?(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+(?:[-./&]\w+)*|[^\w\s]")


def treebank_tokens(text: str) -> list[str]:
    """The tokens of a text, punctuation among them."""
    return _TOKEN.findall(text.lower().replace("’", "'"))
