"""Text to rows of tokens: corpora, tokenizers, shards, and the order in which rows are seen. Never imports torch."""

from comt_cli.data.dataset import Dataset
from comt_cli.data.evaluation import EvaluationBatches
from comt_cli.data.loader import TrainBatches
from comt_cli.data.order import sample_indices
from comt_cli.data.prepare import fingerprint, prepare
from comt_cli.data.rows import IGNORE, PAD, Batch, Rows
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "IGNORE",
    "PAD",
    "Batch",
    "Dataset",
    "EvaluationBatches",
    "ProgressCallback",
    "Rows",
    "Tokenizer",
    "TrainBatches",
    "fingerprint",
    "load_tokenizer",
    "prepare",
    "sample_indices",
]
