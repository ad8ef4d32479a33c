"""Two environments, measured in turns."""
