"""Known defects of mixed precision: a decorated function each, which says what is wrong and shows it."""
