"""The counting pass: exact counts of what a step does, never inside a timed block."""
