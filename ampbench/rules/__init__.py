"""Autocast's rules as probed: selecting among them, disagreements and changes, and the text to show them. No torch."""
