"""The rules, pure: no I/O, no clock, no torch. From recordings to verdicts."""
