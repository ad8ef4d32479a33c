"""What knows nothing of runs: numbers as text, statistics, precisions, metrics, names."""
