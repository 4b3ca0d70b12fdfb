"""Looks closer."""
