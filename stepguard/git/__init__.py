"""Revisions of the measured repository, and their trees."""
