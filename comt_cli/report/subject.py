"""What the runs of a table are of, text or images: what they count, what of them is shown, and how it is called."""

from __future__ import annotations

from dataclasses import dataclass

from comt_cli.recipe.image_settings import ImageSettings
from comt_cli.runs.plan import RunSpec


@dataclass(frozen=True)
class Subject:
    """`counted` are tokens or images; `metrics` the keys of `result.json` that only runs of this kind have.

    `plain` is the network against which parameters are counted, `differs` what of it is another at the smaller scales.
    """

    counted: str
    metrics: tuple[str, ...]
    plain: str
    differs: str

    @property
    def speed(self) -> str:
        """The speed's key in `result.json`, `timings.jsonl` and the CSVs."""
        return f"{self.counted}_per_second"

    @property
    def result_keys(self) -> tuple[str, ...]:
        """What is shown of `result.json`."""
        return (
            "step",
            "steps",
            self.counted,
            "loss",
            *self.metrics,
            "train_loss",
            "diverged_at",
            "last_finite_loss",
            "parameters",
            "extra_parameters",
            "extra_parameters_percent",
            "flops",
            "train_seconds",
            self.speed,
            "mfu",
            "peak_memory_bytes",
            "waiting_share",
            "device",
            "git_commit",
        )


TEXT = Subject(
    counted="tokens",
    metrics=("perplexity", "galore_perplexity", "bits_per_byte"),
    plain="the plain Pre-LN model of the same size",
    differs="whose width and vocabulary are other ones",
)
IMAGES = Subject(
    counted="images",
    metrics=("accuracy", "top5_accuracy"),
    plain="the plain network of the same size",
    differs="whose width and classes may be other ones",
)


def subject_of(spec: RunSpec) -> Subject:
    """What a run is of."""
    return IMAGES if isinstance(spec.settings, ImageSettings) else TEXT
