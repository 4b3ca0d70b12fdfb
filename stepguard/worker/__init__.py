"""What runs inside a rank. Nothing outside this package imports torch."""
