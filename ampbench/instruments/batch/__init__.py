"""The largest batch that fits, and the batch of best throughput."""
