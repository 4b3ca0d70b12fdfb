"""Links to lines: of the measured commit, without secrets, and never out of the repository."""

import subprocess

import pytest

from stepguard.core.site import Site
from stepguard_lab.source_links import Repository, pages_of, repository

HASH = "4f2a91c0d3e7" + "0" * 28
SITE = Site(".item()", "model/train loop.py", 88, "step", "loss.item()")


@pytest.mark.parametrize(("url", "link"), [
    ("https://github.com/o/n", f"/blob/{HASH}/model/train%20loop.py#L88"),
    ("https://gitlab.com/o/n", f"/-/blob/{HASH}/model/train%20loop.py#L88"),
    ("https://bitbucket.org/o/n", f"/src/{HASH}/model/train%20loop.py#lines-88"),
])  # fmt: skip
def test_a_line_has_an_address(url, link):
    """At the commit, which stays when the branch moves."""
    assert Repository(url).page_of(SITE, HASH) == url + link


@pytest.mark.parametrize("file", ["/etc/passwd", "../other/x.py", "a/../../x.py", ""])
def test_a_file_of_another_folder_has_none(file):
    """A library's file is not in the repository."""
    assert not Repository("https://github.com/o/n").page_of(Site("x", file, 1), HASH)


def test_a_line_that_is_in_no_commit_has_none():
    """Of a tree with changes the commit has another text there."""
    pages = Repository("https://github.com/o/n")
    assert not pages.page_of(SITE, "") and not pages.page_of(SITE, HASH, [SITE.file])
    assert not pages.page_of(SITE, 'x"><script>') and not Repository().page_of(SITE, HASH)


def test_the_remote_of_a_checkout(tmp_path):
    """Read from git; a project below the repository's top has its folder in front."""
    for command in ("init -q", "remote add origin https://t:s@github.com/o/n.git"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    (tmp_path / "project").mkdir()
    assert repository(tmp_path / "project") == Repository("https://github.com/o/n", "project/")
    assert (
        repository(tmp_path / "project")
        .page_of(SITE, HASH)
        .endswith("/project/model/train%20loop.py#L88")
    )


@pytest.mark.parametrize(("remote", "url"), [
    ("git@github.com:o/name.git", "https://github.com/o/name"),
    ("https://github.com/o/name.git", "https://github.com/o/name"),
    ("https://user:ghp_secret@github.com/o/name", "https://github.com/o/name"),
    ("https://oauth2:secret@gitlab.example.com:8443/a/b/c.git",
     "https://gitlab.example.com:8443/a/b/c"),
    ("ssh://git@github.com:22/o/name.git", "https://github.com/o/name"),
    ("http://git.example.com/o/name/", "http://git.example.com/o/name"),
    ("/srv/git/name.git", ""),
    ("../name", ""),
    ("file:///srv/git/name", ""),
    ("javascript://github.com/%0aalert(1)", ""),
    ("https://[broken/o", ""),
    ("", ""),
])  # fmt: skip
def test_a_remotes_pages(remote, url):
    """Of the usual spellings; a user, a password or a token is left out, and a path has none."""
    assert pages_of(remote) == url
