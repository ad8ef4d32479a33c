"""What GradScaler does."""
