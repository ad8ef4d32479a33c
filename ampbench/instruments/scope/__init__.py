"""What entering autocast around more than forward and loss costs."""
