"""The driver: plans, turns and servers of a run."""
