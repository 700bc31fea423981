"""Training of many runs: the queue, the outcomes, and execution in this process, in workers, or on a cluster."""
