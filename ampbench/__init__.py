"""Benchmark and accuracy-regression harness for PyTorch mixed precision."""

__version__ = "0.1.0"
