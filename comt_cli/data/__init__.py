"""Text to rows of tokens, and images; and the order in which they are seen. Importing it imports no torch."""

from comt_cli.data.dataset import Dataset
from comt_cli.data.evaluation import EvaluationBatches
from comt_cli.data.images.dataset import ImageBatch, ImageDataset, ImageSide
from comt_cli.data.loader import TrainBatches
from comt_cli.data.order import sample_indices, uniform_draws
from comt_cli.data.prepare import fingerprint, identify, prepare
from comt_cli.data.rows import PAD, Batch, Rows
from comt_cli.data.side import IGNORE, AnyBatch, Side
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "IGNORE",
    "PAD",
    "AnyBatch",
    "Batch",
    "Dataset",
    "EvaluationBatches",
    "ImageBatch",
    "ImageDataset",
    "ImageSide",
    "ProgressCallback",
    "Rows",
    "Side",
    "Tokenizer",
    "TrainBatches",
    "fingerprint",
    "identify",
    "load_tokenizer",
    "prepare",
    "sample_indices",
    "uniform_draws",
]
