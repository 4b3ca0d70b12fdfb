"""python -m stepguard"""

import os
import select
import shlex
import sys
from pathlib import Path

try:
    from stepguard.cli.main import main
except ModuleNotFoundError as missing:
    clone = Path(__file__).resolve().parents[1]
    source = shlex.quote(str(clone)) if (clone / "pyproject.toml").is_file() else "stepguard"
    raise SystemExit(
        f"stepguard: {missing.name} is not installed; install what it needs: "
        f"{shlex.quote(sys.executable)} -m pip install {source}"
    ) from None


def nobody_reads() -> bool:
    """Tell whether the reader of standard output, `head` say, has closed it."""
    output = select.poll()
    output.register(1, 0)  # errors alone are reported
    return bool(output.poll(0))


try:
    try:
        status = main()
    finally:
        # Here, inside the try: at the interpreter's end nothing could catch a broken pipe.
        if sys.stdout is not None:  # closed from the beginning
            sys.stdout.flush()
except BrokenPipeError:
    if not nobody_reads():
        raise
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for the flush at the interpreter's end
    status = 1
raise SystemExit(status)
