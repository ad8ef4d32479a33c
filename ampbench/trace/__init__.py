"""Traces that explain a precision's cost and error: casts, op by op. Torch side."""
