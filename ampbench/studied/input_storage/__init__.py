"""What inputs stored in half save or lose, and how it is told. No torch."""
