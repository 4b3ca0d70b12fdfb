"""Fingerprints: the hardware and software that measured."""

from dataclasses import dataclass, field

# Variables that change what runs. Figures that were measured with other values cannot be compared.
# Each name stands for all variables that begin with it.
STEERING = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_",
    "CUBLASLT_",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "DNNL_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "MALLOC_",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_",
    "PYTHONDEVMODE",
    "PYTHONMALLOC",
    "PYTHONTRACEMALLOC",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_TUNABLEOP_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_ALLOW_TF32",
    "TORCH_BLAS_PREFER_",
    "TORCH_COMPILE_",
    "TORCH_CUDNN_",
    "TORCH_LINALG_PREFER_",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_INTERPRET",
)

# Variables that steer how several GPUs exchange. Those that only name a host's network
# (NCCL_SOCKET_IFNAME, NCCL_IB_HCA) or print (NCCL_DEBUG) are not among them.
EXCHANGE = (
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_COLLNET_",
    "NCCL_CROSS_NIC",
    "NCCL_CUMEM_",
    "NCCL_IB_DISABLE",
    "NCCL_MAX_",
    "NCCL_MIN_",
    "NCCL_NET_GDR_",
    "NCCL_NTHREADS",
    "NCCL_NVLS_",
    "NCCL_P2P_",
    "NCCL_PROTO",
    "NCCL_SHM_",
)
SEVERAL_RANKS = ("TORCH_DISTRIBUTED_DEBUG",)  # for NCCL and gloo
ALL_STEERING = (*STEERING, *SEVERAL_RANKS, *EXCHANGE)

# Libraries that run a loop, or a part of a step, for their user.
LIBRARIES = (
    "accelerate",
    "apex",
    "bitsandbytes",
    "deepspeed",
    "diffusers",
    "flash_attn",
    "lightning",
    "liger_kernel",
    "litgpt",
    "peft",
    "pytorch_lightning",
    "timm",
    "torchao",
    "torchtitan",
    "torchvision",
    "transformer_engine",
    "transformers",
    "trl",
    "xformers",
)


def steers(variable: str) -> bool:
    """Tell whether an environment variable may change what runs, with any number of ranks."""
    return variable.startswith(ALL_STEERING)


@dataclass(frozen=True)
class Fingerprint:
    """The hardware and software that measured."""

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
    # Versions of libraries that the workload imported. They explain a change, and never forbid a
    # comparison.
    libraries: dict[str, str] = field(default_factory=dict)

    def software_key(self, ranks: int) -> dict[str, str]:
        """Return what must be equal if stored figures are to be compared."""
        # The local part, "+cu130", names the build. ``cuda`` says that, too.
        torch = self.torch.partition("+")[0]
        steering: tuple[str, ...] = STEERING
        if ranks > 1:
            steering += SEVERAL_RANKS + (EXCHANGE if self.cuda else ())  # CPUs exchange by gloo
        known = sorted(self.environment.items())
        chosen = [f"{key}={value}" for key, value in known if key.startswith(steering)]
        steered = {"environment": " ".join(chosen)} if chosen else {}
        if not self.cuda:  # on a CPU what a build has for GPUs does not matter
            return {"torch": torch, "arch": self.arch} | steered
        return (
            {
                "torch": torch,
                "cuda": self.cuda,
                "cudnn": self.cudnn,
                "triton": self.triton,
                "driver_branch": self.driver.partition(".")[0],
                "arch": self.arch,
            }
            | ({"nccl": self.nccl} if ranks > 1 else {})
            | steered
        )
