"""Batches on the device, without ever making the GPU wait.

``BatchLoader`` cuts a stream of tokens into consecutive batches; with W ranks, rank r takes every
W-th one, so that one step over W ranks reads exactly what one rank with a W times larger batch
would.

A pageable ``.to(device)`` stops the host until the stream has drained (0.7 % of a step on four
H200s). So batches leave from pinned memory, and the copy of the next one is queued when the
current one is handed out.

    tokens = Tokens.open(STDLIB_SHARD)
    loader = BatchLoader(tokens, batch=64, seq=1024, rank=0, world_size=1, device="cuda")
    inputs, targets = loader.next()
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from model.data.shards import Tokens


class BatchLoader:
    """Consecutive batches of a stream, strided over the ranks, one copied ahead.

    Batch k of rank r starts at ``(k * world_size + r) * batch * seq`` of the stream; it wraps round
    at the end. Targets are the inputs moved on by one token. Scattered, the same sequences come in
    another order, in which neighbours are far apart: else a batch is one document, and the next
    hundred may be, too, and a model that is trained so learns it and forgets the others.

    Args:
        tokens: where they come from; all ranks must use the same stream.
        batch, seq: shape of a batch, in sequences and in tokens.
        rank, world_size: this rank, and how many there are.
        device: where batches are wanted.
        scatter: each sequence once, in the order of multiples of about 0.618 times their number,
            which spreads any run of them evenly (Weyl's sequence of the golden ratio).

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        tokens: Tokens,
        batch: int,
        seq: int,
        rank: int,
        world_size: int,
        device: str | torch.device,
        scatter: bool = False,
    ) -> None:
        for name, value in (("batch", batch), ("seq", seq), ("world_size", world_size)):
            if value < 1:
                raise ValueError(f"{name} is {value}; possible: an int of 1 or more")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}; possible: an int from 0 to {world_size - 1}")
        self._tokens = tokens
        self._shape = (batch, seq)
        self._rank, self._stride = rank, world_size * batch * seq
        self._device = torch.device(device)
        self._length, self._jump = len(tokens), 0
        if scatter:
            sequences = max(1, len(tokens) // seq)
            self._length = sequences * seq
            jump = max(1, round(sequences * 0.618034))
            while math.gcd(jump, sequences) > 1:  # else some would come twice and others never
                jump += 1
            self._jump = jump * seq
        self.seek(0)

    @property
    def position(self) -> int:
        """Where in the stream the next batch of rank 0 begins: the same number on every rank."""
        return self._position

    def seek(self, position: int) -> None:
        """Go on from ``position``, a number that ``position`` has given."""
        self._position = position % self._length
        self._ahead = self._send()

    def next(self) -> tuple[Tensor, Tensor]:
        """Return (inputs, targets), each (batch, seq) int64 on the device; never waits for it."""
        current = self._ahead
        self.seek(self._position + self._stride)
        return current

    def _send(self) -> tuple[Tensor, Tensor]:
        """Start copying the next batch to the device."""
        batch, seq = self._shape
        start = self._position + self._rank * batch * seq
        # Pinned memory is taken afresh for every batch. PyTorch's host allocator gives it out
        # again only after the copy from it has run, so nothing here has to wait or keep count.
        # The copies go to the compute stream: 1 MB takes about 20 us of a step of 250 ms, which
        # is not worth a second stream and its hazards.
        host = torch.empty(
            (2, batch, seq), dtype=torch.int64, pin_memory=self._device.type == "cuda"
        )
        rows, columns = (batch, seq) if self._jump else (1, batch * seq)
        # By numpy, row for row: operators of torch would count as work of the step.
        inputs, targets = (host[half].view(-1).numpy().reshape(rows, columns) for half in (0, 1))
        for row in range(rows):
            at = (start // seq + row) * self._jump % self._length if self._jump else start
            tokens = self._tokens.read(at, columns + 1)
            inputs[row], targets[row] = tokens[:-1], tokens[1:]
        # Two copies into two tensors rather than two views of one: a view can start at an address
        # that is not aligned for vector loads, and compiled code would then copy it again.
        if self._device.type == "cpu":
            return host[0].clone(), host[1].clone()
        return (
            host[0].to(self._device, non_blocking=True),
            host[1].to(self._device, non_blocking=True),
        )
