"""What trainings in several precisions come to, against fp32: verdicts, and how they are told. No torch."""
