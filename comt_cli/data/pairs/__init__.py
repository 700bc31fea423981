"""Parallel text: pairs of a source and its translation, prepared as buckets. Importing it imports no torch."""
