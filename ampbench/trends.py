"""Runs in order: series over versions, commits or dates, and where they changed."""
