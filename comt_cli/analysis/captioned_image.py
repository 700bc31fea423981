"""The image that a captioner is observed on, and a caption of it."""

from __future__ import annotations

import math

import numpy as np
import torch

from comt_cli.analysis.text import Observation, Regions, Tokens, encoded_and_decoded
from comt_cli.data.captions.dataset import prepare
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedCaptioner
from comt_cli.generation.caption import ImageCaptioner, Seen
from comt_cli.generation.transcript import one_line


def observed_image(loaded: LoadedCaptioner, number: int = 0, text: str | None = None) -> Observation:
    """A test image of the model's data set, `image`, and a caption of it, `caption`: the words that the decoder reads,
    from the begin word to the last before the end. None stands for what beam search says with the run's settings.

    The images are rendered or read now where they are not prepared. The model becomes fp32.

    Raises:
        UserError: the images cannot be had, or are not those that the model was trained on; there is no image of that
            number; the text is empty or too long; the network's outputs are not finite.
    """
    dataset = prepare(loaded.data)
    if dataset.content_hash != loaded.run.data_content:
        raise UserError(
            f"{loaded.name} was trained on other images of {loaded.data.corpus} than those that are here",
            "They were changed, or this version of comt makes others. Train it anew to look into it.",
        )
    if not 0 <= number < len(dataset.test):
        raise UserError(f"there is no test image {number}", f"They are numbered from 0 to {len(dataset.test) - 1}.")
    using = ImageCaptioner(loaded, torch.device("cpu"))
    tokenizer, pixels = loaded.tokenizer, dataset.image("test", number)
    vectors_RF = dataset.test.batch(np.array([number])).regions[0]
    if text is None:
        ids = using.captions(Seen(vectors_RF, pixels), loaded.decode)[0].hypothesis.tokens
    else:
        ids = tuple(tokenizer.encode(one_line(text)))
        if not 1 <= len(ids) <= using.longest - 1:
            limit = f"{loaded.name} takes 1 to {using.longest - 1}"
            raise UserError(f"the caption has {len(ids)} words; {limit}", "Give another --text.")
    target = (using.begin, *ids)
    places = "" if pixels is None else ", named by row and column"
    whose = "by the network itself" if text is None else "as it was given"
    said = (
        f"Test image {number} of {loaded.data.corpus}; a caption of it, {whose}: “{tokenizer.decode(ids)}”; the first "
        f"of its true ones: “{dataset.texts['test'].references[number][0]}”.",
        f"The image's tokens are its {len(vectors_RF)} regions{places}.",
    )
    image = Regions(torch.from_numpy(vectors_RF), _names(len(vectors_RF), is_grid=pixels is not None))
    caption = Tokens(torch.tensor(target), tokenizer.pieces(target))
    return encoded_and_decoded(loaded.model, {"image": image}, {"caption": caption}, *said)


def _names(regions: int, *, is_grid: bool) -> list[str]:
    """`row-column` from 1 where the regions are the patches of an image, row by row."""
    side = math.isqrt(regions)
    return [f"{place // side + 1}-{place % side + 1}" if is_grid else "region" for place in range(regions)]
