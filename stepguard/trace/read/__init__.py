"""Readers: from the file that a profiler wrote to a Trace or to tables."""
