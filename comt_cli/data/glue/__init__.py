"""Tasks that a pre-trained model is fine-tuned to: one or two texts and a class or a number. Never imports torch."""
