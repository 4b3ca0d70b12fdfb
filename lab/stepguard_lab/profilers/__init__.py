"""Profilers around the steps of a workload, inside a rank: traces, memory, ranges, peaks."""
