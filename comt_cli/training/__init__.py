"""One loop for every model: step, optimiser and schedule, precision, distribution, checkpoints, progress, signals."""
