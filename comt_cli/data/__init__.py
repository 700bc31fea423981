"""Data: texts as rows of tokens, images, pairs and captions; and the order of samples. Does not import torch."""
