"""Scores of translations against references: sacreBLEU's metrics under fixed names. Never imports torch."""
