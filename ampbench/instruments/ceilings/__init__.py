"""What a device attains at best."""
