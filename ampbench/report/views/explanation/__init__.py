"""What the section Explanation is made of."""
