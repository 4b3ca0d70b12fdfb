"""Names of kernels, short enough for a line."""

import re

# Kernels that ATen has one of for many operators, and what stands between it and the operator.
_GENERIC = ("elementwise_kernel", "reduce_kernel", "multi_tensor_apply_kernel")
_WRAPPERS = (
    "ListMetadata",
    "ReduceOp",
    "UnaryFunctor",
    "func_wrapper_t",
    "gpu_kernel_impl",
    "gpu_kernel_impl_nocast",
)


def is_generic(name: str) -> bool:
    """Tell whether a kernel is one of ATen's that many operators have."""
    return name.partition("<")[0].endswith(_GENERIC)


def short(name: str, width: int = 36) -> str:
    """Return a kernel's name without template arguments; a long one keeps begin and end. Of ATen's
    generic kernels it is the operator's: FillFunctor, direct_copy_kernel_cuda.
    """
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    bare, _, arguments = name.partition("<")
    if is_generic(name):
        operators = re.findall(r"at::native::(?:\w+::)*(\w+)", arguments)
        bare = next((operator for operator in operators if not operator.endswith(_WRAPPERS)), bare)
    bare = bare.partition("(")[0] or name
    return bare if len(bare) <= width else f"{bare[: width - 13]}...{bare[-10:]}"
