"""Stored runs as one self-contained HTML page."""
