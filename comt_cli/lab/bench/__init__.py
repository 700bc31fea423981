"""How fast things are, and how much memory they take: measured in turns, as ratios."""
