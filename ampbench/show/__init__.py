"""What is shown, apart from where."""
