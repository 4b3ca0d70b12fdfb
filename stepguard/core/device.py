"""The two kinds of devices that a case runs on, named as torch and a case name them.

torch calls every GPU that it drives through ``torch.cuda`` "cuda", AMD's too. Only three places
know a vendor's own interfaces: machine/gpu.py (driver), trace/api_calls.py (names of API calls) and
worker/torch_device.py (torch's interface to the device).
"""

GPU = "cuda"
CPU = "cpu"
DEVICES = (GPU, CPU)


def is_gpu(device: str) -> bool:
    """Tell whether a device type, a case's or torch's, is a GPU."""
    return device == GPU
