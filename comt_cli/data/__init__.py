"""Text to rows of tokens, and images; and the order in which they are seen. Importing it imports no torch."""
