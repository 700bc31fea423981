"""Measurements of speed and memory, and of networks before any training; nothing imports this package."""
