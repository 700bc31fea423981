"""Text from a language model: the key-value cache, sampling, and what is shown while it comes."""
