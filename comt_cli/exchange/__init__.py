"""Trained models as files: our checkpoints, Hugging Face folders, GGUF, and the tokenizers that go with them."""
