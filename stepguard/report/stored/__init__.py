"""Describe what is stored: recordings, what a change edits of them, waivers."""
