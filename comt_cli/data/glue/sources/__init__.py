"""The sources of tasks to fine-tune to, one file each. A file put here is found; no entry names it."""
