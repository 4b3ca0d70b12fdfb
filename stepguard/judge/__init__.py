"""Judge: from recordings to verdicts. Pure: no I/O, no clock, no torch."""
