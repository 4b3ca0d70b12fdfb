"""Kinds of kernels, by name: what the GPU's time goes to.

The order of the rules matters. A Triton kernel that was fused around attention is named after it,
and is Triton all the same; NCCL and cuDNN kernels hold words that other rules look for.
"""

import re

NCCL = "NCCL"
TRITON = "Triton"
ATTENTION = "attention"
GEMM = "GEMM"
OPTIMIZER = "optimizer and clip"
ELEMENTWISE = "elementwise"
MEMORY = "copies and fills"
OTHER = "other"
KERNEL_CLASSES = (GEMM, TRITON, NCCL, ATTENTION, ELEMENTWISE, OPTIMIZER, MEMORY, OTHER)

# The first rule that is found in the name decides.
_RULES = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (NCCL, r"^nccl|^void nccl"),
        (ATTENTION, r"^triton_tem_fused\w*attention"),
        (GEMM, r"^triton_tem_fused\w*mm"),  # the compiler's own products, when it autotunes
        (TRITON, r"^triton_"),
        (ATTENTION, r"sdpa|fmha|flash|attention|cudnn::fusion::(compute_dot_do_o|convert_dq)"),
        (GEMM, r"nvjet|gemm|gemv|cublas|cutlass|splitk|xmma"),
        (OPTIMIZER, r"multi_tensor_apply|lpnorm"),
        (ELEMENTWISE, r"at::native|at_cuda_detail|at::cuda"),
    )
)


def kernel_class(name: str) -> str:
    """Return the one of KERNEL_CLASSES that the kernel called ``name`` belongs to."""
    for kind, pattern in _RULES:
        if pattern.search(name):
            return kind
    return OTHER
