"""Remotes: where their pages are, without secrets."""

import pytest

from stepguard.machine.git.revision import name_on_github, pages_of


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("git@github.com:o/name.git", "https://github.com/o/name"),
        ("https://github.com/o/name.git", "https://github.com/o/name"),
        ("https://user:ghp_secret@github.com/o/name", "https://github.com/o/name"),
        (
            "https://oauth2:secret@gitlab.example.com:8443/a/b/c.git",
            "https://gitlab.example.com:8443/a/b/c",
        ),
        ("ssh://git@github.com:22/o/name.git", "https://github.com/o/name"),
        ("http://git.example.com/o/name/", "http://git.example.com/o/name"),
        ("/srv/git/name.git", ""),
        ("../name", ""),
        ("file:///srv/git/name", ""),
        ("javascript://github.com/%0aalert(1)", ""),
        ("https://[broken/o", ""),
        ("", ""),
    ],
)
def test_a_remotes_pages(remote, url):
    """Of the usual spellings; a user, a password or a token is left out, and a path has none."""
    assert pages_of(remote) == url


@pytest.mark.parametrize(
    ("remote", "name"),
    [
        ("git@github.com:o/n.git", "o/n"),
        ("ssh://git@github.com/o/n.x.git", "o/n.x"),
        ("https://user:secret@github.com/o/n/", "o/n"),
        ("https://github.com/o", ""),
        ("https://github.com/o/n/tree", ""),
        ("https://notgithub.com/o/n", ""),
        ("https://example.org/github.com/o/n", ""),
        ("/srv/github.com/o/n", ""),
    ],
)
def test_a_name_on_github(remote, name):
    """Only of a repository on GitHub itself: a workflow takes an action from there."""
    assert name_on_github(remote) == name
