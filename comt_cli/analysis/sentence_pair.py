"""The sentence that a translator is observed on, and its translation."""

from __future__ import annotations

import re

import torch

from comt_cli.analysis.text import MAX_TOKENS, Observation, Tokens, encoded_and_decoded
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedTranslator
from comt_cli.generation.transcript import one_line
from comt_cli.generation.translate import Options, translator
from comt_cli.tasks.settings.translation import TranslationSettings

DEFAULT_SENTENCES = {
    "en": "The train to Berlin leaves on Monday at 9:30.",
    "de": "Der Zug nach Berlin fährt am Montag um 9:30 Uhr ab.",
    "fr": "Le train pour Berlin part lundi à 9 h 30.",
    "vi": "Chuyến tàu đi Berlin khởi hành vào thứ Hai lúc 9:30.",
}
"""What a translator is observed on, by its source language; those from any other language get the English one."""


def observed_pair(loaded: LoadedTranslator, text: str | None = None) -> Observation:
    """A sentence, `source`, and what beam search translates it to with the run's settings, `target`: the tokens that
    the decoder reads, from the begin token to the last before the end. The model becomes fp32.

    None stands for a sentence of the source language (`DEFAULT_SENTENCES`), of which a model of short sentences gets
    the beginning.

    Raises:
        UserError: the text is empty or too long; the network's outputs are not finite.
    """
    loaded.model.float()
    using = translator(loaded, torch.device("cpu"))
    tokenizer, limit = loaded.tokenizer, min(MAX_TOKENS, loaded.longest or MAX_TOKENS) - 1
    language = re.split("[_-]", loaded.run.settings_as(TranslationSettings).data.source)[0]
    default = DEFAULT_SENTENCES.get(language, DEFAULT_SENTENCES["en"])
    ids = tokenizer.encode(default)[:limit] if text is None else tokenizer.encode(one_line(text))
    if not 1 <= len(ids) <= limit:
        raise UserError(f"the text has {len(ids)} tokens; {loaded.name} takes 1 to {limit}", "Give another --text.")
    source = (*ids, using.end)
    found = using.search([source], Options(loaded.decode))[0][0]
    assert found.hypothesis is not None
    source_tokens, target_tokens = (
        Tokens(torch.tensor(each), tokenizer.pieces(each)) for each in (source, (using.begin, *found.hypothesis.tokens))
    )
    said = f"Source: “{tokenizer.decode(ids)}”; its translation, by the network itself: “{found.text}”."
    return encoded_and_decoded(loaded.model, {"source": source_tokens}, {"target": target_tokens}, said)
