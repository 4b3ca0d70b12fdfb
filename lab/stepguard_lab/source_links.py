"""Links from a line of the source to the repository's page of it, at the measured commit."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

from stepguard.core.site import Site
from stepguard.machine.git.revision import git, origin, pages_of

_HASH = re.compile(r"[0-9a-f]{7,64}")


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
