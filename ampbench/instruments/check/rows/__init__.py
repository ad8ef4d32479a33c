"""The rows of the checks, a module for each area."""
