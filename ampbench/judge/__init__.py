"""Judge stored runs: frames, advice, comparisons, verdicts, gates."""
