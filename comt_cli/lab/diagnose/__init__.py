"""What a residual connection does to signals and gradients before any training, with no data; and what of the chapter
on residual connections (Brenndoerfer 2025) reproduces."""
