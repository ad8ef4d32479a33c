"""What a gate lets pass: the parts of `ampbench.gate`."""
