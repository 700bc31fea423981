"""The corpora of pairs, one file each. A file put here is found; no entry names it."""
