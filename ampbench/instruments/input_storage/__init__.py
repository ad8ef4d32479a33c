"""What storing inputs in half saves and loses."""
