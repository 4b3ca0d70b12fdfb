"""The counting pass: what a step does, exactly, never inside a timed block."""
