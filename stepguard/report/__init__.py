"""Verdicts as text: for the terminal, as Markdown, as JSON."""
