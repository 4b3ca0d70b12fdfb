"""Sort kernels and ranges into classes by their names, and shorten names for a line of text.

The rules are in the table kernel_classes.toml, and in a file that a user adds.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

COMMUNICATION = "communication"
OTHER = "other"
INPUT = "input"  # the phase in which the host waits for data
# The first of these that occurs marks the steps. A user's own range of this kind lies inside the
# profiler's.
STEPS = (r"^ProfilerStep#\d+$", r"^stepguard\.step$", r"^step[_ #]?\d+$")
_KEYS = {"kernel": "class", "canonical": "name", "phase": "name"}
_Rules = tuple[tuple[re.Pattern[str], str], ...]


@dataclass(frozen=True)
class Classes:
    """Rules in order. The first rule whose pattern is found in a name decides."""

    kernels: _Rules
    canonical: _Rules
    phases: _Rules
    steps: tuple[str, ...] = STEPS  # patterns of the annotations that mark steps

    @cache  # noqa: B019  # there is one table a process, and its rules are asked again and again
    def kernel(self, name: str) -> str:
        """Return the kernel's class; OTHER if no rule knows it."""
        return _first(self.kernels, name) or OTHER

    def canonical_name(self, name: str) -> str:
        """Return the kernel's name without what differs between two builds of the same kernel."""
        for pattern, text in self.canonical:
            name = pattern.sub(text, name)
        return name.removeprefix("void ").strip()

    def phase(self, name: str) -> str | None:
        """Return the phase of a profiler's range; None if it is unknown."""
        return _first(self.phases, name)


def _first(rules: _Rules, name: str) -> str | None:
    return next((result for pattern, result in rules if pattern.search(name)), None)


@cache
def usual_classes() -> Classes:
    """Return stepguard's own rules."""
    folder = resources.files("stepguard.trace")
    return parse_classes(folder.joinpath("kernel_classes.toml").read_text(encoding="utf-8"))


def parse_classes(text: str) -> Classes:
    """Return the rules of a file. Raises ValueError that names the wrong entry."""
    content = tomllib.loads(text)
    if unknown := sorted(content.keys() - _KEYS.keys()):
        raise ValueError(f"[[{unknown[0]}]] is no table of classes; there are: {', '.join(_KEYS)}")
    kernel, canonical, phase = (_rules(kind, content.get(kind, [])) for kind in _KEYS)
    return Classes(kernel, canonical, phase)


def _rules(kind: str, entries: Sequence[Any]) -> _Rules:
    key = _KEYS[kind]
    rules = []
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict) or set(entry) != {"pattern", key}:
            raise ValueError(f"[[{kind}]] number {number}: it needs pattern and {key}, no more")
        try:
            pattern = re.compile(entry["pattern"], re.IGNORECASE)
        except (re.error, TypeError) as error:
            raise ValueError(f"[[{kind}]] number {number}: {entry['pattern']!r}: {error}") from None
        rules.append((pattern, str(entry[key])))
    return tuple(rules)


# ATen's kernels that serve many operators, and what stands between their name and the operator's.
_GENERIC = ("elementwise_kernel", "reduce_kernel", "multi_tensor_apply_kernel")
_WRAPPERS = (
    "ListMetadata",
    "ReduceOp",
    "UnaryFunctor",
    "func_wrapper_t",
    "gpu_kernel_impl",
    "gpu_kernel_impl_nocast",
)


def is_generic(name: str) -> bool:
    """Tell whether a kernel is one of ATen's that serve many operators."""
    return name.partition("<")[0].endswith(_GENERIC)


def short(name: str, width: int = 36) -> str:
    """Return a kernel's name without template arguments; the operator of a generic one."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    bare, _, arguments = name.partition("<")
    if is_generic(name):
        operators = re.findall(r"at::native::(?:\w+::)*(\w+)", arguments)
        bare = next((operator for operator in operators if not operator.endswith(_WRAPPERS)), bare)
    bare = bare.partition("(")[0] or name
    return bare if len(bare) <= width else f"{bare[: width - 13]}...{bare[-10:]}"


# An operator's name, and the part of it that operators of both passes share: aten.addmm and
# aten::mm, aten._scaled_dot_product_efficient_attention and aten::_efficient_attention_backward.
_OPERATOR = re.compile(
    r"\w+(?:\.|::)(?P<name>(?:_scaled_dot_product(?=_)|add(?=mm)|badd(?=bmm))?(?P<common>\w+?)"
    r"(?:_forward|(?:_dense)?_backward(?:_data)?)?)(?:\[.*\])?(?:\.\w+)?"
)


def operator_in(place: str, operator: str) -> str:
    """Return an ``operator`` without its pass, if the kernel at this ``place`` runs it; else ""."""
    launches, called = _OPERATOR.fullmatch(place), _OPERATOR.fullmatch(operator)
    if not called:
        return ""
    same = called["common"] == launches["common"] if launches else f"_{called['name']}_" in place
    return called["common"] if same else ""
