"""Which modules to keep in fp32: the search, what its sets cost, and how that is told. No torch."""
