"""Reads the host side of a trace: the calls of steps, their identity, time and memory."""
