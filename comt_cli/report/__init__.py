"""Run directories in, tables out. Torch-free; reads what training wrote and nothing else."""
