"""The cases that a suite declares, as pytest finds them: in a process of its own."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from stepguard.case import Case
from stepguard.launch.engine import ENGINE
from stepguard.plugin.collector import TARGET

COLLECT_LIMIT_S = 120.0
NOTHING_COLLECTED = 5  # pytest's exit code


def cases_of(root: Path, suite: str) -> list[Case]:
    """Return every case declared below ``root / suite``, extended ones too. Raises ValueError,
    with pytest's last line, if it cannot collect them.
    """
    if not (root / suite).exists():
        raise ValueError(f"{root / suite}: no such folder; say where the cases are: --suite DIR")
    command = [sys.executable, "-m", "pytest", suite, "--collect-only", "-q", "-m", ""]
    command += [
        "-p",
        "stepguard.plugin",
        "-p",
        "stepguard.plugin.collector",
        "-p",
        "no:cacheprovider",
    ]
    paths = [os.environ.get("PYTHONPATH", ""), str(ENGINE.parent)]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "cases.json"
        env = os.environ | {
            TARGET: str(target),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        }
        try:
            done = subprocess.run(
                command,
                cwd=root,
                env=env,
                capture_output=True,
                text=True,
                timeout=COLLECT_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(
                f"collecting {suite} took more than {COLLECT_LIMIT_S:.0f} s: see what it imports, "
                f"pytest {suite} --collect-only"
            ) from None
        if done.returncode not in (0, NOTHING_COLLECTED) or not target.exists():
            said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            last = said[-1] if said else f"exit status {done.returncode}"
            raise ValueError(f"{suite} cannot be collected: {last}; pytest {suite} --collect-only")
        return msgspec.json.decode(target.read_bytes(), type=list[Case])
