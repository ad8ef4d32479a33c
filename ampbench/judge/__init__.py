"""What stored runs say: frames, advice, comparisons, verdicts, gates."""
