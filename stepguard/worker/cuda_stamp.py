"""CUDA events as a pytest-benchmark timer, for any suite. It needs nothing else of stepguard.

    pytest --benchmark-timer=stepguard.worker.cuda_stamp.CudaStamp

pytest-benchmark calls its timer before and after a round and subtracts. A stamp records an event on
the current stream when it is made. A difference waits for the later event and asks the device for
the time between the two. So there is no host synchronization inside the round, and no launch
latency counts. Work on side streams that the current stream does not wait for is not seen.
"""

import torch


class CudaStamp:
    """A point on the current CUDA stream. Raises RuntimeError if there is no usable GPU."""

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
        """Return the seconds of device time from ``earlier`` to this stamp, to about 0.5 us."""
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3
