"""One folder for each explanation and each study."""
