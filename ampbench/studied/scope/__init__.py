"""What each scope of autocast costs, and how it is told. No torch."""
