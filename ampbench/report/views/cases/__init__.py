"""What the section Cases is made of."""
