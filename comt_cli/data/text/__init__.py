"""Text: documents of a corpus as tokens, in rows."""
