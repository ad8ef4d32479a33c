"""The graphs beside the eager step, read: autograd's, that of torch.jit.trace, those of torch.compile."""
