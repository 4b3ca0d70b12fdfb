"""The error of a command line that is wrong by itself, whatever the state of the tree."""


class UsageError(ValueError):
    """The command line itself is wrong: exit status 2."""
