"""List what pyproject.toml and lab/pyproject.toml require for pip, or check an interpreter for it.

    python scripts/requirements.py list test     # a requirement a line
    python scripts/requirements.py check perf    # 1, with the pip command, if any is missing here
    python scripts/requirements.py pins          # constraints.txt, with the torch for this machine
    python scripts/requirements.py oldest        # the same, with the oldest that may be installed

`perf` is what the suite needs. `clone` adds what the lab and its installation need; `test` adds
what the tests and linters need. `gate` is the part of `perf` that reads documents, without torch;
`history` adds what the lab's history needs. `browser` is what tests of the HTML report in a browser
need, without torch. `docs` makes the site of docs/. `oldest` is `test` without linters and charts,
whose own needs are newer.

A GPU's recordings are compared under the torch that they were made with alone. So `pins` names the
torch of the newest recording of this machine's kind of GPU in baselines/, where there is one, and
constraints.txt says it for all others.
"""

import json
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE, LAB = ("torch", "model"), ("lab", "build")
CLONE = (*SUITE, *LAB, "traces")
GROUPS = {"perf": SUITE, "clone": CLONE, "test": (*CLONE, "history", "test", "lint", "plot")}
GROUPS |= {"gate": (), "history": (*LAB, "history"), "browser": ("lab", "browser")}
GROUPS |= {"docs": ("docs",), "oldest": (*CLONE, "history", "test")}
# What a driver says of its cards, a file each: "Model:   NVIDIA H100 80GB HBM3".
CARDS = Path("/proc/driver/nvidia/gpus")
GATE = ("msgspec", "numpy", "nvidia-ml-py", "packaging")
OLDEST_PYTHON = (3, 11)


def required(what):
    """The requirement strings for ``what``, in their order."""
    import tomllib  # Python 3.11; an older interpreter must get as far as check()'s sentence

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = list(project["project"]["dependencies"])
    if what in ("gate", "history"):
        lines = [line for line in lines if line.partition(">=")[0] in GATE]
    if what == "docs":  # built without the package
        lines = []
    groups = project["project"]["optional-dependencies"] | project["dependency-groups"]
    if "lab" in GROUPS[what]:  # else the gate's folders are enough
        lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
        groups |= lab["optional-dependencies"]
        groups["lab"] = [line for line in lab["dependencies"] if not line.startswith("stepguard")]
    for group in GROUPS[what]:
        lines += groups[group]
    return list(dict.fromkeys(lines))


def unmet(requirement):
    """Return the problem with one "name>=version" here, or the empty string."""
    requirement, _, marker = requirement.partition(";")
    below = re.search(r"python_version < '([\d.]+)'", marker)  # the only marker that there is
    if below and sys.version_info >= numbers(below[1]):
        return ""
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


def pins(cards):
    """The lines of constraints.txt; its torch is that of the recordings of the machine's cards."""
    recorded = torch_of_recordings(cards)
    return pinned({"torch": recorded} if recorded else {})


def oldest():
    """The lines of constraints.txt, at the oldest versions that an installation may have."""
    lines = (line.partition(";")[0].partition(">=") for line in required("clone"))
    return pinned({name: version for name, _, version in lines})


def pinned(others):
    """The lines of constraints.txt, with these other versions by name, in upper or lower case."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    other_lines = {name.lower(): f"{name}=={version}" for name, version in others.items()}
    return [other_lines.get(line.partition("==")[0].lower(), line) for line in lines]


def torch_of_recordings(cards):
    """The torch of the newest recording in baselines/ on cards of this kind; empty if none."""
    found = []
    for path in (ROOT / "baselines").glob("*.json"):
        content = json.loads(path.read_text())
        if content.get("machine") not in cards:
            continue
        for case in content["cases"].values():
            recordings = [one for epoch in case["epochs"] for one in epoch["recordings"]]
            found += [(one["date"], one["software"]["torch"]) for one in recordings]
    return max(found, default=("", ""))[1].partition("+")[0]


def cards_here():
    """The names of this machine's GPUs, as its driver gives them; empty without one."""
    texts = [path.read_text() for path in sorted(CARDS.glob("*/information"))]
    names = {line.partition(":")[2].strip() for text in texts for line in text.splitlines()[:1]}
    if not names:
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        try:
            shown = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return names
        names = set(shown.stdout.splitlines()) if shown.returncode == 0 else names
    return names


def main(arguments):
    """Run a command; its exit status."""
    command, *groups = arguments or [""]
    if command in ("list", "check") and len(groups) == 1 and groups[0] in GROUPS:
        if command == "check":
            return check(*groups)
        print("\n".join(required(*groups)))
    elif command == "pins" and not groups:
        print("\n".join(pins(cards_here())))
    elif command == "oldest" and not groups:
        print("\n".join(oldest()))
    else:
        usage = f"requirements.py list|check {'|'.join(GROUPS)}, or pins, or oldest"
        print(f"usage: {usage}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
