"""The corpora that there are, by the names that recipes give them."""

from __future__ import annotations

from comt_cli.data.corpus import Corpus
from comt_cli.data.settings import TextSettings


def corpus_for(data: TextSettings) -> Corpus:
    """The corpus that `data.corpus` names."""
    if data.corpus.startswith("files:"):
        from comt_cli.data.local_files import LocalFiles

        return LocalFiles(data.corpus.removeprefix("files:"))
    if data.corpus == "python-docs":
        from comt_cli.data.python_docs import PythonDocs

        return PythonDocs()
    if data.corpus == "python-source":
        from comt_cli.data.python_source import PythonSource

        return PythonSource()
    if data.corpus == "wikitext-103":
        from comt_cli.data.wikitext import wikitext

        return wikitext(data.folder)
    from comt_cli.data.hub import hub_corpus

    return hub_corpus(data.corpus)
