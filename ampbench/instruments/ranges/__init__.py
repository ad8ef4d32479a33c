"""How large values are, where errors begin, what is not finite."""
