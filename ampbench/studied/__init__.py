"""What studies found, told: verdicts, sentences and tables, from what runs hold."""
