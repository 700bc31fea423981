"""Architectures, one file each, and their costs. A model offers sites and names no method."""
