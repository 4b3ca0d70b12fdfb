"""The machine that measures: its GPUs, its git, its processes."""
