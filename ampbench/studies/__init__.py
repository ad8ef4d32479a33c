"""Studies: what explains a network or a device beside the numbers of a run, one module each."""
