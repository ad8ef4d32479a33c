"""What a device attains at best, and how it is told. No torch."""
