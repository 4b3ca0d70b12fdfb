"""Run pytest with its arguments and the words of $ARGS, and in place of --tests those of $TESTS.
What --unless-named is in front of goes where $ARGS names a file or folder of tests itself.

    ARGS="-k 'forward and not nano'" python scripts/with_args.py --unless-named perf_tests

Words are split and unquoted as a shell does, and nothing in them is run or replaced.
"""

import os
import shlex
import sys
from pathlib import Path


def words(name):
    """The words of a variable; an exit that names it where a quote has no end."""
    try:
        return shlex.split(os.environ.get(name, ""))
    except ValueError as error:
        sys.exit(f"{name}={os.environ[name]}: {error}")


def holds_tests(path):
    """Tell a path that pytest would collect from one that is the value of an option: `-k model`."""
    return path.is_file() if path.suffix == ".py" else any(path.glob("**/test_*.py"))


if __name__ == "__main__":
    asked = words("ARGS")
    if sys.argv[1:2] == ["--unless-named"]:
        named = any(holds_tests(Path(word.partition("::")[0])) for word in asked)
        sys.argv[1 : 3 if named else 2] = []
    given = [w for one in sys.argv[1:] for w in (words("TESTS") if one == "--tests" else [one])]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *given, *asked])
