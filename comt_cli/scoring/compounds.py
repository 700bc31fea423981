r"""German compounds split at their hyphens, as the papers since GNMT score English to German: a text as Moses'
tokeniser cuts it, in which `rich-text` stands as three tokens, `rich ##AT##-##AT## text`.

The split raises BLEU by 0.7 to 1: it is shown under a name of its own. tensor2tensor's script is a line of Perl,
`s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g`, whose matches do not overlap: `a-b-c` is split once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version

_LANGUAGE = "de"
_HYPHEN = re.compile(r"(\S)-(\S)")


def split_compounds(tokenised: str) -> str:
    """A tokenised line with its hyphens as tokens."""
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", tokenised)


def with_split_compounds(texts: Sequence[str]) -> list[str]:
    """Plain texts as Moses' tokens with split compounds."""
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=_LANGUAGE)
    return [split_compounds(tokenizer.tokenize(text, return_str=True)) for text in texts]


def compound_signature() -> str:
    """What stands before sacreBLEU's signature."""
    return f"moses:{_LANGUAGE}|compounds:split|sacremoses:{version('sacremoses')}"
