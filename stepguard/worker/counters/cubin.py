"""Read cubins: the machine code of NVIDIA GPUs, one kernel a file, in the ELF format.

Registers and spills are in the file. Its instructions are read by NVIDIA's disassembler. That takes
0.25 s to start, so all kernels are disassembled by one call: as raw code, one behind another. Sixty
kernels with 13,000 instructions take 0.5 s of a CPU in all.
"""

import re
import struct
import subprocess
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

DISASSEMBLER = Path("backends", "nvidia", "bin", "nvdisasm")  # in the folder of Triton's wheel
TIMEOUT_S = 60.0  # 80 kernels take a second
_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_BITS = 8  # the type of a section that is not in the file
_INFO, _CODE, _PARAMETERS = ".nv.info", ".text.", ".nv.constant0."
# Attributes in that section: a symbol's number, and its value. The first is written by ptxas for
# each function, the second is what it keeps in local memory for a thread.
_REGISTERS, _FRAME_BYTES = 0x2F, 0x11
_VALUE_FOLLOWS = 4  # the format of an attribute that is longer than four bytes
# "        /*0160*/              @!P0 LDG.E R0, desc[UR4][R6.64] ;"
_INSTRUCTION = re.compile(
    r"^\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)([\w.]*)", re.M
)
_ATOMIC = re.compile(r"ATOM[GS]?|RED[GS]?|UTMAREDG")
_TENSOR_CORE = re.compile(r"(UTC)?[A-Z]G?MMA")
_ALL = "instructions"
_KINDS = (_ALL, "fp64", "tensor_core", "atomic")  # fields of MachineCode
_FP64 = re.compile(r"D(ADD|MUL|FMA|SETP|MNMX|MMA)")
_FP64_FORM = re.compile(r"\.(F64|\w+64H)\b")  # F2F.F64.F32, MUFU.RCP64H


class CubinError(ValueError):
    """A file is no cubin, or a disassembler cannot read it."""


@dataclass(frozen=True)
class Cubin:
    """A kernel's file."""

    kernel: str
    architecture: str  # "SM90"
    registers: int  # of a thread
    spill_bytes: int  # of a thread
    code: bytes


def read_cubin(image: bytes) -> Cubin:
    """Return the kernel of a file. Raises CubinError if it is no cubin with one kernel."""
    try:
        return _read(image)
    except (struct.error, LookupError, OverflowError, ValueError) as error:
        raise CubinError(f"it is no cubin of one kernel: {error}") from None


def _read(image: bytes) -> Cubin:
    if image[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is no ELF file")
    (flags,), version = struct.unpack_from("<I", image, 0x30), image[8]
    # Functions that the kernel calls may have sections of their own. They have no parameters.
    sections = {name: (symbol, content) for name, symbol, content in _sections(image)}
    (parameters,) = (name for name in sections if name.startswith(_PARAMETERS))
    kernel = parameters.removeprefix(_PARAMETERS)
    symbol = sections[f"{_CODE}{kernel}"][0] & 0xFFFFFF
    figures = dict(_attributes(sections[_INFO][1]))
    # From the eighth version of the format on, another byte has the architecture.
    architecture = f"SM{flags >> 8 & 0xFF if version >= 8 else flags & 0xFF}"
    return Cubin(
        kernel,
        architecture,
        figures[_REGISTERS, symbol],
        figures[_FRAME_BYTES, symbol],
        b"".join(content for name, (_, content) in sections.items() if name.startswith(_CODE)),
    )


def _sections(image: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Yield the name, the info and the content of each section."""
    (begin,) = struct.unpack_from("<Q", image, 0x28)
    size, number, names = struct.unpack_from("<HHH", image, 0x3A)
    rows = [_SECTION.unpack_from(image, begin + i * size) for i in range(number)]
    for row in rows:
        at = rows[names][4] + row[0]
        content = b"" if row[1] == _NO_BITS else image[row[4] : row[4] + row[5]]
        yield image[at : image.index(b"\0", at)].decode(), row[7], content


def _attributes(content: bytes) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield (attribute, symbol) and its value."""
    at = 0
    while at + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == _VALUE_FOLLOWS and size == 8:
            symbol, value = struct.unpack_from("<II", content, at)
            yield (attribute, symbol), value
        at += size if form == _VALUE_FOLLOWS else 0


def instructions_of(cubins: Sequence[Cubin], disassembler: Path) -> list[dict[str, int]]:
    """Return how many instructions each cubin has, and of some kinds. Raises CubinError."""
    first, *others = sorted({cubin.architecture for cubin in cubins})
    if others:
        raise CubinError(f"kernels are of several architectures: {first}, {', '.join(others)}")
    text = _disassembled(b"".join(cubin.code for cubin in cubins), first, disassembler)
    ends = list(accumulate(len(cubin.code) for cubin in cubins))
    kinds: list[Counter[str]] = [Counter() for _ in cubins]
    for offset, name, form in _INSTRUCTION.findall(text):
        if (at := int(offset, 16)) >= ends[-1]:
            raise CubinError(f"{disassembler} printed an instruction at {at:#x}, behind the code")
        kinds[bisect_right(ends, at)].update(_kinds(name, form))
    if not all(counts[_ALL] for counts in kinds):
        raise CubinError(f"{disassembler} printed no instruction of a kernel")
    return [{kind: counts[kind] for kind in _KINDS} for counts in kinds]


def _kinds(name: str, form: str) -> Iterator[str]:
    if name == "NOP":  # it fills the last line of code
        return
    yield _ALL
    if _FP64.fullmatch(name) or _FP64_FORM.search(form):
        yield "fp64"
    if _TENSOR_CORE.fullmatch(name):
        yield "tensor_core"
    if _ATOMIC.fullmatch(name):
        yield "atomic"


def _disassembled(code: bytes, architecture: str, disassembler: Path) -> str:
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(code)
        file.flush()
        command = [str(disassembler), "--binary", architecture, file.name]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                encoding="ascii",
                errors="replace",
                timeout=TIMEOUT_S,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            said = (error.stderr or "").strip().splitlines()[-1:] or [f"status {error.returncode}"]
            raise CubinError(f"{disassembler} cannot read {architecture}: {said[0]}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CubinError(f"{disassembler} cannot be run: {error}") from None
    return done.stdout
