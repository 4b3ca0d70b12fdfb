"""Pages about traces: text, picture, tables."""
