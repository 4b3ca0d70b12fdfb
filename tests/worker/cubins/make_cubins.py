"""Make the cubins of this folder, and what NVIDIA's disassembler prints of them. No GPU is needed.

pip install --no-deps --target /path/of/its/own triton==3.7.1
export TRITON_ALWAYS_COMPILE=1 TRITON_DISABLE_LINE_INFO=1 PYTHONPATH=.:/path/of/its/own
python tests/worker/cubins/make_cubins.py
"""

import subprocess
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stepguard.worker.counters.cubin import read_cubin

FOLDER = Path(__file__).parent
FLOATS = "*fp32"


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def in_double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wide = tl.load(x + at, at < n).to(tl.float64)
    tl.store(out + at, (wide * wide + 0.1).to(tl.float32), at < n)


@triton.jit
def histogram(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + at, at < n), 1.0, at < n)


@triton.jit
def product(a, b, c, K, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for k in range(0, K, SIZE):
        left = tl.load(a + at[:, None] * K + k + at[None, :])
        right = tl.load(b + (k + at)[:, None] * SIZE + at[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + at[:, None] * SIZE + at[None, :], total)


@triton.jit
def spilled(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at)
    tl.store(out + at, values - tl.max(values, 0))


KERNELS = {
    add: ({"x": FLOATS, "y": FLOATS, "out": FLOATS, "n": "i32"}, {"BLOCK": 256}, {}),
    in_double: ({"x": FLOATS, "out": FLOATS, "n": "i32"}, {"BLOCK": 256}, {}),
    histogram: ({"x": "*i32", "out": FLOATS, "n": "i32"}, {"BLOCK": 256}, {}),
    product: ({"a": "*bf16", "b": "*bf16", "c": FLOATS, "K": "i32"}, {"SIZE": 32}, {}),
    spilled: ({"x": FLOATS, "out": FLOATS}, {"BLOCK": 1024}, {"num_warps": 1, "maxnreg": 24}),
}  # fmt: skip


def make(kernel, signature, constants, options):
    """Compile a kernel for an H100."""
    types = signature | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=types, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def main():
    code = b""
    for kernel, how in KERNELS.items():
        name = kernel.__name__
        image = make(kernel, *how).asm["cubin"]
        (FOLDER / f"{name}.cubin").write_bytes(image)
        code += read_cubin(image).code
    raw = FOLDER / "all.bin"
    raw.write_bytes(code)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    text = subprocess.check_output([tool, "--binary", "SM90", raw], text=True)
    (FOLDER / "all.sass").write_text(text)
    raw.unlink()


if __name__ == "__main__":
    main()
