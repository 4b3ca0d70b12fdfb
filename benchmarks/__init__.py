"""The project's own benchmarks: is the gate right, how often, and how fast? See README.md."""
