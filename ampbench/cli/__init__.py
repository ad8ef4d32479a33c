"""The command line: the only place that prints, draws progress, writes reports and sets exit codes."""
