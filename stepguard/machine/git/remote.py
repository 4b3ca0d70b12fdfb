"""Where a repository came from: the address of its remote, and of the pages that show it."""

import re
from pathlib import Path
from urllib.parse import quote, urlsplit

from stepguard.machine.git.revision import git

# "git@host:owner/name.git", as ssh takes it.
_SCP = re.compile(r"(?:[\w.-]+@)?(?P<host>[\w.-]+\.[\w-]+):(?P<path>[^/:\s][^:\s]*)")
_GITHUB = re.compile(r"https?://(?:www\.)?github\.com/+([\w.-]+/[\w.-]+)")


def origin(root: Path) -> str:
    """Return the address of the remote ``origin`` of a folder's repository; empty without one."""
    return (git(root, "remote", "get-url", "origin") or "").strip()


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


def name_on_github(remote: str) -> str:
    """Return "owner/name" of a remote; empty if it is not on GitHub."""
    match = _GITHUB.fullmatch(pages_of(remote))
    return match[1] if match else ""
