"""A worker group under torchrun: its start, its channel, its end, and what ended it."""
