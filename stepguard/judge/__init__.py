"""The judge makes verdicts of evidence, recordings and pairs. Pure: no I/O, no clock, no torch."""
