"""Text from a language model: key-value cache, sampling, and streaming output."""
