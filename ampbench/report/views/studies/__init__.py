"""What the section Studies is made of."""
