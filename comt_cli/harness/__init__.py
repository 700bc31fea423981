"""Evaluation of language models on tasks of lm-evaluation-harness."""
