"""The variants of a step: where batches come from, who waits, and what is observed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from model.data.shards import STDLIB_SHARD, Tokens


@dataclass(frozen=True)
class Variant:
    """A way to run a step; ``item``: rank 0 reads the loss after its clock, as it would to print"""

    pageable: bool
    synchronize: bool
    item: bool


VARIANTS = {
    "P": Variant(False, False, False),
    "PS": Variant(False, True, False),
    "U": Variant(True, False, False),
    "US": Variant(True, True, False),
    "UI": Variant(True, False, True),
    "PI": Variant(False, False, True),
}


class PageableLoader:
    """Batches as the script in question sends them: views of ordinary memory, blocking copies."""

    def __init__(self, shape: tuple[int, int], rank: int, ranks: int, device: torch.device) -> None:
        (tokens,) = Tokens.open(STDLIB_SHARD).parts
        size = shape[0] * shape[1]
        self._length, self._shape, self._size = len(tokens), shape, size
        pieces = [tokens] * (1 + -(-(size + 1) // len(tokens)))  # so that no batch has to wrap
        self._tokens = torch.cat([torch.tensor(piece, dtype=torch.int64) for piece in pieces])
        self._at, self._stride, self._device = rank * size % len(tokens), ranks * size, device

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(inputs, targets), each of the shape given, on the device."""
        piece = self._tokens[self._at : self._at + self._size + 1]
        self._at = (self._at + self._stride) % self._length
        inputs, targets = piece[:-1].view(self._shape), piece[1:].view(self._shape)
        return inputs.to(self._device), targets.to(self._device)


class PhaseTimes:
    """Host time and GPU time by events of every phase that the workload enters, nested."""

    def __init__(self, gpu: bool) -> None:
        self._gpu = gpu
        self._open: list[str] = []
        self._seen: list[tuple[int, str, float, Any, Any]] = []
        self._paths: list[str] = []  # in the order in which they are first entered
        self.step = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Stands in for the workload's own phases."""
        self._open.append(name)
        path = " > ".join(self._open)
        if path not in self._paths:
            self._paths.append(path)
        first, last = self._event(), self._event()
        if first is not None:
            first.record()
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            host_ms = (time.perf_counter_ns() - began) / 1e6
            if last is not None:
                last.record()
            self._seen.append((self.step, path, host_ms, first, last))
            self._open.pop()

    def _event(self) -> Any:
        return torch.cuda.Event(enable_timing=True) if self._gpu else None

    def means(self) -> dict[str, dict[str, float | None]]:
        """Mean host and GPU ms a step by phase, the first step left out; call when drained."""
        steps = len({step for step, *_ in self._seen}) - 1
        found: dict[str, dict[str, float | None]] = {}
        for path in self._paths:
            mine = [one for one in self._seen if one[1] == path and one[0] > 0]
            gpu = sum(one[3].elapsed_time(one[4]) for one in mine) / steps if self._gpu else None
            found[path] = {"host_ms": sum(one[2] for one in mine) / steps, "gpu_ms": gpu}
        return found


class PhasedLoader:
    """A loader whose batches are a phase, ``load``."""

    def __init__(self, loader: Any, times: PhaseTimes) -> None:
        self._loader, self._times = loader, times

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The other loader's next batch."""
        with self._times.phase("load"):
            return self._loader.next()
