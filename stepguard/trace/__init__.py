"""Readers of profiler traces. They need no torch: a trace is a file, whoever wrote it."""
