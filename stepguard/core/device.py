"""Devices that a case runs on: the names of the two kinds, as torch and a case write them.

Every GPU that torch drives through ``torch.cuda`` is called "cuda", AMD's too. What a vendor's own
interfaces say is kept to three places: machine/gpu/ (driver), trace/api_calls.py (names of API
calls) and worker/torch_device.py (torch's interface to the device).
"""

GPU = "cuda"
CPU = "cpu"
DEVICES = (GPU, CPU)


def is_gpu(device: str) -> bool:
    """Return whether a case's or a torch device's type names a GPU."""
    return device == GPU
