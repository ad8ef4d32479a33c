"""What autocast does to each op."""
