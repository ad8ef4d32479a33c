"""Autocast held to its own rules: documented, registered, observed."""
