"""The identity of a step: hashes of all that it does on the host and on the GPU.

Two steps with equal identities launch the same kernels, from the same generated code, in the same
order and with the same grids. The operands have the same shapes, strides and types, and libraries
have the same settings.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepIdentity:
    """The identity of one rank's step. All profiled steps have it."""

    parts: dict[str, str] = field(default_factory=dict)  # "kernels" -> hash
    problem: str = ""  # why it is unknown, or which parts differ from step to step

    def differs_from(self, other: "StepIdentity") -> Iterator[str]:
        """Yield the parts that are not known to be equal."""
        for name in sorted(self.parts.keys() | other.parts.keys()):
            if name not in self.parts or self.parts[name] != other.parts.get(name):
                yield name
