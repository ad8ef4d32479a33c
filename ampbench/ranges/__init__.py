"""Magnitudes and errors as recorded: headroom, predictions, scales, profiles. Pure functions, without torch."""
