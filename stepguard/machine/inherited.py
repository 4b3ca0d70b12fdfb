"""What this process was started with, and what a process that it starts now would inherit.

Code of the measured tree runs inside pytest: conftests, test modules, fixtures. What it sets there
would reach the launches of both sides of a pair, so the pair could not show it. Only for Linux, and
only with the standard library.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Variables that are not compared, since code of the tree does not set them: pytest, coverage, the
# interpreter (its locale, PEP 538) and libraries do, at import or when they compile.
_BY_THEMSELVES = (
    "PYTEST_",
    "COV_CORE_",
    "COVERAGE_",
    "LC_CTYPE",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "CUDA_MODULE_LOADING",
    "TORCHINDUCTOR_CACHE_DIR",
    "_TORCHINDUCTOR_",
    "TRITON_CACHE_DIR",
)
_SECRET = re.compile("TOKEN|SECRET|PASS|CREDENTIAL|KEY|AUTH", re.IGNORECASE)
_SHOWN = 60  # characters of a value
_STATUS = {  # /proc/self/status
    "Cpus_allowed_list": "allowed CPUs",
    "Mems_allowed_list": "allowed memory nodes",
    "THP_enabled": "transparent huge pages",
    "Speculation_Store_Bypass": "speculative store bypass",
}


@dataclass(frozen=True)
class Inherited:
    """What a process inherits: its environment, priority, CPUs and resource limits."""

    variables: Mapping[str, str]
    limits: Mapping[str, str]

    def changes(self, now: "Inherited") -> tuple[str, ...]:
        """Return what differs ``now``, each as "name old -> new". Values of secrets are hidden."""
        variables = [_of_somebody(side.variables) for side in (self, now)]
        return (*_differ(*variables), *_differ(self.limits, now.limits))


def inherited_now() -> Inherited:
    """Return what a process would inherit if it were started now."""
    return Inherited(dict(os.environ), dict(_limits()))


def _at_start() -> Inherited:
    """Return the environment that this process was started with, and its limits. The kernel does
    not keep the limits of the start: they are the present ones, so this runs at import.
    """
    text = Path("/proc/self/environ").read_bytes().rstrip(b"\0")
    pairs = (entry.partition(b"=") for entry in text.split(b"\0") if b"=" in entry)
    return Inherited({os.fsdecode(k): os.fsdecode(v) for k, _, v in pairs}, dict(_limits()))


def _limits() -> Iterator[tuple[str, str]]:
    yield "niceness", str(os.getpriority(os.PRIO_PROCESS, 0))
    yield "scheduling policy", str(os.sched_getscheduler(0))
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name in _STATUS:
                yield _STATUS[name], value.strip()
    for line in Path("/proc/self/limits").read_text().splitlines()[1:]:
        # Max open files            1024                 1048576              files
        name, soft, hard = re.split(r"\s{2,}", line.strip())[:3]
        yield f"limit of {name.removeprefix('Max ')}", f"{soft} of {hard}"


def _of_somebody(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: v for name, v in variables.items() if not name.startswith(_BY_THEMSELVES)}


def _differ(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        was, now = old.get(name), new.get(name)
        if was != now:
            yield f"{name} {_shown(name, was)} -> {_shown(name, now)}"


def _shown(name: str, value: str | None) -> str:
    if value is None:
        return "unset"
    if _SECRET.search(name):
        return "(hidden)"
    short = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    return short or '""'


STARTED = _at_start()
