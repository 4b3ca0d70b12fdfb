"""Says which call of the forward pass a part of a backward pass belongs to.

A backward pass runs for one line, the one that starts it. autograd numbers the nodes of its graph,
and makes a node right before its operator is dispatched: then the newest number is the operator's.
"""

import sys

import torch

from stepguard.worker.count.locate import Place, frames, locate


class Origins:
    """Remembers the operator, and its line, that each node of autograd's graph was made for."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[str, Place]] = {}

    def note(self, operator: str) -> None:
        """Note an operator that is being dispatched, "aten.mul.Tensor"."""
        if torch._C._current_autograd_node() is None:
            # One that needs no gradient finds the number of an earlier operator, which has it.
            number = torch.autograd._get_sequence_nr() - 1
            if number not in self._made:
                self._made[number] = operator, locate(frames(sys._getframe()))

    def here(self) -> str:
        """Return "backward of aten.mul, gpt.py:88 in MLP.forward" while that is running; empty
        outside of a backward pass, and for a node that no operator was seen to make.
        """
        node = torch._C._current_autograd_node()
        made = self._made.get(node._sequence_nr()) if node is not None else None
        if made is None:
            return ""
        operator, place = made
        where = place.via or f"{place.file}:{place.line} in {place.function}"
        return f"backward of {operator.rpartition('.')[0]}, {where}"
