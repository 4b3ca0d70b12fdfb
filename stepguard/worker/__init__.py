"""Code that runs inside a rank. Only this package imports torch."""
