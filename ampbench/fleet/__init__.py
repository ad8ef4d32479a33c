"""A fleet: the cases of one selection measured on many machines, each by a session of its own."""
