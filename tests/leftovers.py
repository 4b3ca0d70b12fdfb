"""What a launch that is over may have left: processes, scratch folders, sockets."""

import os
from pathlib import Path


def environment(pid):
    """A process's environment; empty when it is gone, a zombie, or another user's."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries)
    return {key: value for key, _, value in pairs}


def processes(tmpdir):
    """(pid, environment) of every process of a launch whose scratch folder lies in tmpdir."""
    found = {int(e): environment(e) for e in os.listdir("/proc") if e.isdigit()}
    below = str(tmpdir) + "/"
    return {
        pid: env
        for pid, env in found.items()
        if "STEPGUARD_TOKEN" in env and env.get("STEPGUARD_SCRATCH", "").startswith(below)
    }


def sockets(tokens):
    """Abstract sockets of these launches."""
    text = Path("/proc/net/unix").read_text()
    return [line for line in text.splitlines() if any(f"stepguard-{t}" in line for t in tokens)]


def leftovers(tmpdir, tokens, held=""):
    """Whatever is still there of launches that are over. ``held``: the name of the scratch folder
    of one that is not, since it waits for the next case.
    """
    scratch = {pid: Path(env["STEPGUARD_SCRATCH"]) for pid, env in processes(tmpdir).items()}
    left = [f"process {pid}" for pid, folder in scratch.items() if folder.name != held]
    folders = [name for name in os.listdir(tmpdir) if name.startswith("stepguard-")]
    left += [f"folder {name}" for name in folders if name != held]
    return left + [f"socket {line}" for line in sockets(tokens)]
