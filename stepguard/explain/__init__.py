"""Explain why one profile's step takes longer than another's. Pure: no files, no clock, no GPU."""
