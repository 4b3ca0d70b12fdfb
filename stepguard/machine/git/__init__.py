"""Revisions and worktrees of git."""
