"""Names of kernels, short enough for a line."""

import re

# ATen's kernels that serve many operators, and what stands between their name and the operator's.
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
    """Tell whether a kernel is one of ATen's that serve many operators."""
    return name.partition("<")[0].endswith(_GENERIC)


def short(name: str, width: int = 36) -> str:
    """Return a kernel's name without template arguments. A long name keeps its beginning and end.
    For ATen's generic kernels it is the operator: FillFunctor, direct_copy_kernel_cuda.
    """
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    bare, _, arguments = name.partition("<")
    if is_generic(name):
        operators = re.findall(r"at::native::(?:\w+::)*(\w+)", arguments)
        bare = next((operator for operator in operators if not operator.endswith(_WRAPPERS)), bare)
    bare = bare.partition("(")[0] or name
    return bare if len(bare) <= width else f"{bare[: width - 13]}...{bare[-10:]}"
