"""Result files of the studies: the machine, and JSON that is complete at any time."""

import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

from stepguard.gpu.nvml import MachineError, visible_gpus

ROOT = Path(__file__).resolve().parents[2]


class Document:
    """A JSON file that is replaced as a whole each time something is added."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path, self.content = path, content

    def update(self, **more: Any) -> None:
        """Add entries and write the file."""
        self.content |= more
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text(json.dumps(self.content, indent=1, allow_nan=False) + "\n", "utf-8")
        fresh.replace(self.path)


def command_line() -> str:
    """Return this process's command as a shell takes it."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def default_path(name: str) -> Path:
    """Return a path that git ignores, so that the tree stays clean."""
    folder = ROOT / ".stepguard"
    folder.mkdir(exist_ok=True)
    return folder / name


def machine(device: str, count: int) -> dict[str, Any]:
    """Describe the ``count`` GPUs to be used; raise SystemExit when there are too few."""
    if device == "cpu":
        return {"device": "CPU", "cores": os.cpu_count(), "arch": platform.machine()}
    try:
        gpus = visible_gpus()
    except MachineError as error:
        raise SystemExit(str(error)) from None
    if len(gpus) < count:
        raise SystemExit(f"{count} GPUs are wanted, {len(gpus)} are visible: use --gpus N")
    used = gpus[:count]
    return {
        "device": used[0].name,
        "count": count,
        "driver": used[0].driver,
        "uuids": [gpu.uuid for gpu in used],
        "cores": os.cpu_count(),
    }
