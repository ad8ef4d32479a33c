"""What the section Sweeps is made of."""
