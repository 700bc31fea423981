"""`comt evaluate`: finished runs evaluated again, for what their results lack."""

from __future__ import annotations

from comt_cli.commands import options


def evaluate(
    chosen: options.ManyRuns,
    device: options.Device = None,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = options.DEFAULT_RUNS,
) -> None:
    """Evaluate finished runs again, for metrics that came later.

    The weights that a run has ended with are evaluated on its validation and test data, and what its result lacks is
    added to it. Nothing that is there changes:
    every value must come out as it was, but for rounding, else that is said and nothing is added. The result says what
    was added, when, and by which versions and commit; tables show it when they are written anew. What a run that ends
    with an average has of its last weights alone (last_test_...) cannot be had again.

    Examples:

      comt evaluate table3:pre-ln+comt

      comt evaluate sas/table3 --scale smoke
    """
    from comt_cli.verbs import models

    models.evaluate(chosen, device, runs, scale, set_)
