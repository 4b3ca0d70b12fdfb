"""The identity of a step: hashes of all that it does on the host and on the GPU.

Two steps of equal identities launch the same kernels from the same generated code, in the same
order and with the same grids, on operands of the same shapes, strides and types, under the same
settings of libraries.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepIdentity:
    """What one rank's steps are, each of the profiled ones alike."""

    parts: dict[str, str] = field(default_factory=dict)  # "kernels" -> hash
    problem: str = ""  # why it is not known, or which parts differ from step to step

    def differs_from(self, other: "StepIdentity") -> Iterator[str]:
        """Yield the parts that are not known to be equal."""
        for name in sorted(self.parts.keys() | other.parts.keys()):
            if name not in self.parts or self.parts[name] != other.parts.get(name):
                yield name
