"""The whole proof for an accelerator in parts of nine minutes at most: `python -m benchmarks.device`, `make device`."""
