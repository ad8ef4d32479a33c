"""The parts of `ampbench.compare`: runs as columns, pairs of cases, environments, and what is judged of each kind."""
