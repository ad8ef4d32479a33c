"""Studies: explanations of a network or a device beyond the numbers of a run, one module each."""
