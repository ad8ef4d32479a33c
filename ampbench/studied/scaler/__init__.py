"""What trainings with each setting of GradScaler come to, and how they are told. No torch."""
