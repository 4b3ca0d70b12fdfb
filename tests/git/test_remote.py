"""Remotes: which are on GitHub."""

import pytest

from stepguard.machine.git.revision import name_on_github


@pytest.mark.parametrize(("remote", "name"), [
    ("git@github.com:o/n.git", "o/n"),
    ("ssh://git@github.com/o/n.x.git", "o/n.x"),
    ("https://user:secret@github.com/o/n/", "o/n"),
    ("https://github.com/o", ""),
    ("https://github.com/o/n/tree", ""),
    ("https://notgithub.com/o/n", ""),
    ("https://example.org/github.com/o/n", ""),
    ("/srv/github.com/o/n", ""),
])  # fmt: skip
def test_a_name_on_github(remote, name):
    """Only of a repository on GitHub itself: a workflow takes an action from there."""
    assert name_on_github(remote) == name
