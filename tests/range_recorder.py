"""A profiler that notes its ranges."""

from contextlib import contextmanager


def recorder():
    """A profiler's ranges: the paths of all, the open ones, and what opens one."""
    found, opened = [], []

    @contextmanager
    def entered(name):
        opened.append(name)
        found.append("/".join(opened))
        yield
        assert opened.pop() == name  # in order: a profiler's ranges are a stack

    return found, opened, entered
