"""What is planned, measured and stored: frozen, slotted dataclasses by kind, from the standard library alone."""
