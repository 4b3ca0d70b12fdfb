"""Find the call of the forward pass to which an operator of the backward pass belongs.

The whole backward pass runs for one line, the one that starts it. But autograd numbers the nodes of
its graph. It makes a node right before it dispatches the node's operator, so the newest number is
that of the operator.
"""

import sys

import torch

from stepguard.worker.counters.locate import Place, frames, locate


class Origins:
    """Remembers for each node of autograd's graph its operator, and the operator's line."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[str, Place]] = {}

    def note(self, operator: str) -> None:
        """Note an operator that is being dispatched, "aten.mul.Tensor"."""
        if torch._C._current_autograd_node() is None:
            # An operator without gradient gets no number: the newest one is of an earlier operator.
            number = torch.autograd._get_sequence_nr() - 1
            if number not in self._made:
                self._made[number] = operator, locate(frames(sys._getframe()))

    def here(self) -> str:
        """Return what runs now, "backward of aten.mul, gpt.py:88 in MLP.forward".

        Empty outside of a backward pass, and if the node's operator was not seen.
        """
        node = torch._C._current_autograd_node()
        made = self._made.get(node._sequence_nr()) if node is not None else None
        if made is None:
            return ""
        operator, place = made
        where = place.via or f"{place.file}:{place.line} in {place.function}"
        return f"backward of {operator.rpartition('.')[0]}, {where}"
