"""Casts as they were recorded: totals, views, comparisons. Pure functions on records, without torch."""
