"""What the section Distributions is made of."""
