"""What measured: hardware and software, and what of them must be alike to be compared."""

from dataclasses import dataclass, field

# Variables that change what runs, not only where: with other values figures are not comparable.
STEERING = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_ALLOW_TF32",
    "TORCH_COMPILE_",
)


def steers(variable: str) -> bool:
    """Whether an environment variable changes what runs."""
    return variable.startswith(STEERING)


@dataclass(frozen=True)
class Fingerprint:
    """What measured: hardware and software. ``software_key()`` is what must be equal."""

    device_name: str  # "NVIDIA H200", or the CPU's name
    device_uuid: str
    torch: str
    cuda: str = ""
    cudnn: str = ""
    nccl: str = ""
    triton: str = ""
    driver: str = ""
    python: str = ""
    arch: str = ""
    cpu_threads: int = 0
    peak_flops: float | None = None  # nominal dense peak at the case's precision
    floor_flops: float | None = None  # peak at the highest clock the card can run
    environment: dict[str, str] = field(default_factory=dict)  # TORCH_*, NCCL_* ... that were set

    def software_key(self) -> dict[str, str]:
        """Versions under which stored figures may be compared."""
        torch = self.torch.partition("+")[0]
        chosen = [
            f"{key}={self.environment[key]}" for key in sorted(self.environment) if steers(key)
        ]
        steered = {"environment": " ".join(chosen)} if chosen else {}
        if not self.cuda:  # a CPU: what a build brings along for GPUs does not matter there
            return {"torch": torch, "arch": self.arch} | steered
        return {
            "torch": torch,
            "cuda": self.cuda,
            "cudnn": self.cudnn,
            "triton": self.triton,
            "driver_branch": self.driver.partition(".")[0],
            "arch": self.arch,
        } | steered
