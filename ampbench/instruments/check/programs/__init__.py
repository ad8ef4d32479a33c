"""Programs of checks, which nobody imports: each is run as text, by itself."""
