"""Runs any training loop as a workload: a script as ``__main__``, or a function."""
