"""Revisions, worktrees and trailers of git."""
