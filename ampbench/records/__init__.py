"""What is planned, measured and stored, as frozen dataclasses, and what they are called."""
