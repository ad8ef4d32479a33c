"""A training that is watched in its own program: `ampbench.watch`, and callbacks of the programs that run trainings."""
