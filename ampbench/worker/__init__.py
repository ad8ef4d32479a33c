"""torch: what a worker does with a case."""
