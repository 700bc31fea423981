"""Many runs: which are open, what becomes of each, and who trains them: this process, workers, or a cluster."""
