"""List what pyproject.toml requires for pip, or check an interpreter for it.

    python scripts/requirements.py list test    # a requirement a line
    python scripts/requirements.py check perf   # 1, with the pip command, if any is missing here

`perf` is what the suite needs; `test` adds what the project's own tests and linters need; `gate` is
the part of it that reading documents needs, without torch. `history` is `gate` and what the history
needs; `docs` is what the site of docs/ is made with.
"""

import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE = ("traces", "model")
GROUPS = {"perf": SUITE, "test": (*SUITE, "history", "test", "lint", "plot"), "gate": ()}
GROUPS |= {"history": ("history",), "docs": ("docs",)}
GATE = ("msgspec", "numpy", "nvidia-ml-py", "packaging", "scipy")
OLDEST_PYTHON = (3, 11)


def required(what):
    """The requirement strings of pyproject.toml for ``what``, in its order."""
    import tomllib  # Python 3.11; an older interpreter must get as far as check()'s sentence

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = list(project["project"]["dependencies"])
    if what in ("gate", "history"):
        lines = [line for line in lines if line.partition(">=")[0] in GATE]
    if what == "docs":  # built without the package
        lines = []
    groups = project["project"]["optional-dependencies"] | project["dependency-groups"]
    for group in GROUPS[what]:
        lines += groups[group]
    return lines


def unmet(requirement):
    """Return the problem with one "name>=version" here, or the empty string."""
    name, _, oldest = requirement.partition(">=")
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed"
    if oldest and numbers(found) < numbers(oldest):
        return f"{name} {found} is older than {oldest}"
    return ""


def numbers(version):
    """The release part of a version: "2.13.0+cpu" -> (2, 13, 0)."""
    return tuple(int(part) for part in re.match(r"[\d.]*\d", version).group().split("."))


def check(what):
    """Exit status 1, with the remedy, unless this interpreter has everything."""
    if sys.version_info < OLDEST_PYTHON:
        found = sys.version.split()[0]
        print(f"{sys.executable} is Python {found}; 3.11 is the oldest supported")
        return 1
    problems = [(requirement, unmet(requirement)) for requirement in required(what)]
    missing = [requirement for requirement, problem in problems if problem]
    for _, problem in problems:
        if problem:
            print(problem)
    if missing:
        command = shlex.join([sys.executable, "-m", "pip", "install", *missing])
        print(f"install what is missing: {command}")
    return 1 if missing else 0


def main(arguments):
    """Run a command; its exit status."""
    if len(arguments) != 2 or arguments[0] not in ("list", "check") or arguments[1] not in GROUPS:
        print(f"usage: requirements.py list|check {'|'.join(GROUPS)}", file=sys.stderr)
        return 2
    command, what = arguments
    if command == "check":
        return check(what)
    print("\n".join(required(what)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
