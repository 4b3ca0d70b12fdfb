"""What the machine code of a generated kernel needs and consists of: exact, and without a run."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

Figure = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


@dataclass(frozen=True)
class MachineCode:
    """The figures of one kernel's machine code. They are the same in each of its launches."""

    registers: Figure  # of a thread
    spill_bytes: Figure  # of a thread: local memory for what does not fit into its registers
    shared_bytes: Figure  # of a block
    instructions: Figure  # in the code, however often they run; without padding
    fp64: Figure  # instructions that compute in fp64, or convert from or to it
    tensor_core: Figure  # instructions for tensor cores
    atomic: Figure  # instructions for atomic operations on memory
