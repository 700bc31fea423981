"""Runs so small that a test can train them."""

from tiny_runs import one_thread, tiny_cache, tiny_corpus

__all__ = ["one_thread", "tiny_cache", "tiny_corpus"]
