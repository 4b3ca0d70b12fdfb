"""Runs inside a rank. Nothing outside of this package imports torch."""
