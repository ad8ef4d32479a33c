"""What holds of a documented example of mixed precision where its workload was measured."""
