"""From the settings of data of any kind to the data: its fingerprint, and what is opened of it.

A kind of data is a folder beside this file: `settings.py` has its settings, `prepare.py` the class `Kind` that prepares
what they describe. No entry names them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, overload

from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.recipe.settings import Section

if TYPE_CHECKING:
    from comt_cli.data.captions.dataset import CaptionDataset
    from comt_cli.data.captions.settings import CaptionData
    from comt_cli.data.glue.dataset import GlueDataset
    from comt_cli.data.glue.settings import GlueData
    from comt_cli.data.images.dataset import ImageDataset
    from comt_cli.data.images.settings import ImageDataSettings
    from comt_cli.data.pairs.dataset import PairDataset
    from comt_cli.data.pairs.settings import PairData
    from comt_cli.data.text.dataset import Dataset
    from comt_cli.data.text.masking import MaskedDataset
    from comt_cli.data.text.settings import DataSettings, MaskedData


def kind_of(data: Section) -> Any:
    """What prepares the data of these settings, a `Prepared` as a rule."""
    folder = type(data).__module__.rpartition(".")[0]
    return importlib.import_module(f"{folder}.prepare").Kind(data)


def fingerprint(data: Section, progress: ProgressCallback | None = None) -> str:
    """`Prepared.fingerprint`: the identity of the data, found without making it. Raises `UserError`."""
    found: str = kind_of(data).fingerprint(progress or no_progress)
    return found


def known_content(data: Section, name: str) -> str | None:
    """`Prepared.known_content`: the content hash of what is prepared under the fingerprint `name`, if anything is."""
    found: str | None = kind_of(data).known_content(name)
    return found


@overload
def prepare(  # type: ignore[overload-overlap]  # the settings of masked text are text's and a share
    data: MaskedData, progress: ProgressCallback | None = None
) -> MaskedDataset: ...
@overload
def prepare(data: DataSettings, progress: ProgressCallback | None = None) -> Dataset: ...
@overload
def prepare(data: PairData, progress: ProgressCallback | None = None) -> PairDataset: ...
@overload
def prepare(data: CaptionData, progress: ProgressCallback | None = None) -> CaptionDataset: ...
@overload
def prepare(data: GlueData, progress: ProgressCallback | None = None) -> GlueDataset: ...
@overload
def prepare(data: ImageDataSettings, progress: ProgressCallback | None = None) -> ImageDataset: ...
def prepare(data: Section, progress: ProgressCallback | None = None) -> Any:
    """`Prepared.prepare`: the data, made now unless it was made before. Raises `UserError` and `StorageError`."""
    return kind_of(data).prepare(progress or no_progress)
