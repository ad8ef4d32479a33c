"""Which op, weight or input was cast, and at what cost."""
