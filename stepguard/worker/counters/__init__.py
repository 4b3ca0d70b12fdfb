"""Exact counts of what a step does, in a pass of its own and never inside a timed block."""
