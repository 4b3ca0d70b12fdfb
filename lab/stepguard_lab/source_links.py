"""Links from a line of the source to the repository's page of it, at the measured commit."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

from stepguard.core.site import Site
from stepguard.machine.git.revision import git, origin

_HASH = re.compile(r"[0-9a-f]{7,64}")
# "git@host:owner/name.git", as ssh takes it.
_SCP = re.compile(r"(?:[\w.-]+@)?(?P<host>[\w.-]+\.[\w-]+):(?P<path>[^/:\s][^:\s]*)")


@dataclass(frozen=True)
class Repository:
    """The pages of a repository: ``url`` without a user or a slash at its end; "" for none."""

    url: str = ""
    prefix: str = ""  # of the measured folder in the repository, "" or "a/b/"

    def page_of(self, site: Site, commit: str, differing: Collection[str] = ()) -> str:
        """Return the address of a site's line at a commit, or of its file if the line is unknown.

        Return "" if there is no such page: the file is unknown, lies outside of the repository, or
        is among those ``differing`` from the commit.
        """
        path = PurePosixPath(site.file)
        outside = not site.file or path.is_absolute() or ".." in path.parts
        if not self.url or outside or not _HASH.fullmatch(commit) or site.file in differing:
            return ""
        host = urlsplit(self.url).hostname or ""
        view, line = "blob", "L"
        if "gitlab" in host:
            view = "-/blob"
        elif "bitbucket" in host:
            view, line = "src", "lines-"
        anchor = f"#{line}{site.line}" if site.line else ""
        return f"{self.url}/{view}/{commit}/{quote(self.prefix + str(path))}{anchor}"


def repository(root: Path) -> Repository:
    """Return the pages of the remote ``origin`` of a folder's repository, if it has any."""
    url = pages_of(origin(root))
    return Repository(url, (git(root, "rev-parse", "--show-prefix") or "").strip() if url else "")


def pages_of(remote: str) -> str:
    """Return the address of a remote's web pages, "https://host/owner/name"; empty for a path.

    A user, a password or a token in the address is left out.
    """
    remote = remote.removesuffix("/").removesuffix(".git")
    if "://" not in remote:
        scp = _SCP.fullmatch(remote)
        return f"https://{scp['host']}/{quote(scp['path'])}" if scp else ""
    try:
        parts = urlsplit(remote)
        port = f":{parts.port}" if parts.port and parts.scheme in ("http", "https") else ""
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https", "ssh", "git") or not parts.hostname:
        return ""
    scheme = "http" if parts.scheme == "http" else "https"
    return f"{scheme}://{parts.hostname}{port}{quote(parts.path)}"
