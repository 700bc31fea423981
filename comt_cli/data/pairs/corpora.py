"""The corpora of pairs that there are, by the names that recipes give them."""

from __future__ import annotations

from comt_cli.data.pairs.corpus import PairCorpus
from comt_cli.data.pairs.settings import HUB_PAIRS, PairData


def corpus_for(data: PairData) -> PairCorpus:
    """The corpus that `data.corpus` names."""
    if data.corpus == "almanac":
        from comt_cli.data.pairs.almanac import Almanac

        return Almanac(data)
    if data.corpus.startswith("gettext:"):
        from comt_cli.data.pairs.gettext_catalogues import Catalogues

        return Catalogues(data)
    if data.corpus in HUB_PAIRS and data.folder is None:
        from comt_cli.data.pairs.hub_pairs import HubPairs

        return HubPairs(data)
    from comt_cli.data.pairs.text_files import TextFiles

    return TextFiles(data)
