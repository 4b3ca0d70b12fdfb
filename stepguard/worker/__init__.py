"""The code that runs inside a rank. Nothing outside of this package imports torch."""
