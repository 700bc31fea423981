"""The sets of images, one file each. A file put here is found; no entry names it."""
