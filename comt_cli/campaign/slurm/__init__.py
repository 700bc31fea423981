"""`--slurm`: a cluster's site file, submission of runs as array jobs, and the jobs of runs. Torch-free."""
