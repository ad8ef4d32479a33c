"""Checks: which known defects of mixed precision this torch has on this device, each seen by a small program."""
