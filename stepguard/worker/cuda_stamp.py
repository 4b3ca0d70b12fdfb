"""CUDA events as a pytest-benchmark timer, for anybody's suite; nothing else of stepguard needed.

    pytest --benchmark-timer=stepguard.worker.cuda_stamp.CudaStamp

pytest-benchmark calls its timer before and after a round and subtracts the two. A stamp records an
event on the current stream when it is made, and a difference waits for the later event and asks the
device how long lay between: no host synchronization inside the round, no launch latency counted.
Work on side streams that the current stream does not wait for is not seen.
"""

import torch


class CudaStamp:
    """A point on the current CUDA stream. Raises RuntimeError where there is no usable GPU."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"CudaStamp needs a GPU that torch can use; torch {torch.__version__} finds none. "
                "Leave --benchmark-timer out to use the host's clock."
            )
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def __sub__(self, earlier: "CudaStamp") -> float:
        """Seconds of device time from ``earlier`` to this stamp (resolution about 0.5 us)."""
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3
