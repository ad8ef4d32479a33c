"""What the section Trends is made of."""
