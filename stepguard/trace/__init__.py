"""Readers of profiler traces. No torch: a trace is a file, whoever wrote it."""
