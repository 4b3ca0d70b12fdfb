"""python -m stepguard, and the command stepguard of an installation."""

import os
import select
import shlex
import sys
from pathlib import Path


def run() -> int:
    """Run the command line and return its exit status."""
    try:
        from stepguard.cli.main import main
    except ModuleNotFoundError as missing:
        raise SystemExit(_to_install(missing)) from None
    try:
        try:
            return main()
        finally:
            # Inside the try: at the interpreter's end nothing could catch a broken pipe.
            if sys.stdout is not None:  # closed from the beginning
                sys.stdout.flush()
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for the flush at the interpreter's end
        return 1


def _to_install(missing: ModuleNotFoundError) -> str:
    clone = Path(__file__).resolve().parents[1]
    source = shlex.quote(str(clone)) if (clone / "pyproject.toml").is_file() else "stepguard"
    return (
        f"stepguard: {missing.name} is not installed; install what it needs: "
        f"{shlex.quote(sys.executable)} -m pip install {source}"
    )


def _nobody_reads() -> bool:
    """Tell whether the reader of standard output, such as `head`, has closed it."""
    output = select.poll()
    output.register(1, 0)  # only errors are reported
    return bool(output.poll(0))


if __name__ == "__main__":
    raise SystemExit(run())
