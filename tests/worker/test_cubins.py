"""Real cubins of an H100, made by cubins/make_cubins.py, and what NVIDIA's disassembler prints."""

import importlib.util
import struct
import sys
from pathlib import Path

import pytest

from stepguard.worker.counters.cubin import (
    Cubin,
    CubinError,
    instructions_of,
    read_cubin,
)

FOLDER = Path(__file__).parent / "cubins"
# By the wheel's cuobjdump -res-usage (REG, STACK), and by reading the disassembly.
KNOWN = {
    "add": (16, 0, dict(instructions=31, fp64=0, tensor_core=0, atomic=0)),
    "in_double": (16, 0, dict(instructions=31, fp64=6, tensor_core=0, atomic=0)),
    "histogram": (10, 0, dict(instructions=40, fp64=0, tensor_core=0, atomic=2)),
    "product": (56, 0, dict(instructions=231, fp64=0, tensor_core=4, atomic=0)),
    "spilled": (24, 224, dict(instructions=285, fp64=0, tensor_core=0, atomic=0)),
}
TRITON = importlib.util.find_spec("triton")


def image(name):
    return (FOLDER / f"{name}.cubin").read_bytes()


def known_cubins():
    return [read_cubin(image(name)) for name in KNOWN]


@pytest.fixture
def disassembler(tmp_path):
    """Makes a stand-in for nvdisasm, from the body of a program."""

    def made(body):
        path = tmp_path / "nvdisasm"
        path.write_text(f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n{body}\n")
        path.chmod(0o755)
        return path

    return made


def printing(lines):
    """The body of one that prints these instructions, each of 16 bytes."""
    shown = [f"        /*{16 * i:04x}*/      {line} ;" for i, line in enumerate(lines)]
    return f"print({chr(10).join(shown)!r})"


@pytest.mark.parametrize("name", KNOWN)
def test_a_file_says_its_kernel_registers_and_spills(name):
    cubin = read_cubin(image(name))
    assert (cubin.kernel, cubin.architecture) == (name, "SM90")
    assert (cubin.registers, cubin.spill_bytes) == KNOWN[name][:2]


def test_all_kernels_are_disassembled_at_once(disassembler):
    """The disassembler gets their code, one behind another, and their architecture."""
    cubins = known_cubins()
    expected = b"".join(cubin.code for cubin in cubins)
    tool = disassembler(
        f"assert sys.argv[1:3] == ['--binary', 'SM90']\n"
        f"assert Path(sys.argv[3]).read_bytes() == bytes.fromhex('{expected.hex()}')\n"
        f"print(Path({str(FOLDER / 'all.sass')!r}).read_text())"
    )
    assert instructions_of(cubins, tool) == [known[2] for known in KNOWN.values()]


@pytest.mark.skipif(TRITON is None, reason="needs triton, which brings the disassembler")
def test_the_real_disassembler_prints_what_is_kept():
    tool = Path(TRITON.origin).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    cubins = known_cubins()
    assert instructions_of(cubins, tool) == [known[2] for known in KNOWN.values()]
    assert instructions_of(cubins[::-1], tool) == [known[2] for known in KNOWN.values()][::-1]


@pytest.mark.parametrize("line, kinds", [
    ("FFMA R1, R2, R3, R4", ()),
    ("@!P0 DADD R2, R4, R6", ("fp64",)),
    ("@UP1 DSETP.GT.AND P0, PT, R2, R4, PT", ("fp64",)),
    ("MUFU.RCP64H R3, R5", ("fp64",)),
    ("MUFU.RCP R3, R5", ()),
    ("F2F.F32.F64 R1, R2", ("fp64",)),
    ("I2F.F64.S32 R2, R1", ("fp64",)),
    ("DEPBAR.LE SB0, 0x0", ()),
    ("LDG.E.64 R2, desc[UR4][R2.64]", ()),
    ("DMMA.884 R4, R2, R8, R4", ("fp64", "tensor_core")),
    ("HMMA.16816.F32.BF16 R4, R8, R2, R4", ("tensor_core",)),
    ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24", ("tensor_core",)),
    ("UTCHMMA gdesc[UR6], gdesc[UR8], tmem[UR4], tmem[UR10], idesc[UR11], UP0", ("tensor_core",)),
    ("ATOMG.E.ADD.F32.FTZ.RN.STRONG.GPU PT, R2, desc[UR4][R4.64], R3", ("atomic",)),
    ("RED.E.ADD.STRONG.GPU desc[UR4][R4.64], R3", ("atomic",)),
    ("REDUX UR8, R0", ()),
])  # fmt: skip
def test_an_instruction_is_of_known_kinds(line, kinds, disassembler):
    """The padding behind it is no instruction."""
    cubin = Cubin("one", "SM90", 8, 0, bytes(32))
    (counted,) = instructions_of([cubin], disassembler(printing([line, "NOP"])))
    assert counted == dict(
        instructions=1,
        fp64=int("fp64" in kinds),
        tensor_core=int("tensor_core" in kinds),
        atomic=int("atomic" in kinds),
    )


@pytest.mark.parametrize("size", [0, 1, 63, 64, 2000])
def test_a_file_that_is_cut_off_is_refused(size):
    with pytest.raises(CubinError, match="no cubin of one kernel"):
        read_cubin(image("add")[:size])


def test_a_damaged_file_is_read_or_refused():
    """Nothing else is raised, wherever a byte is another one."""
    whole = image("histogram")
    for at in range(0, len(whole), 5):
        damaged = bytearray(whole)
        damaged[at] ^= 0x81
        try:
            read_cubin(bytes(damaged))
        except CubinError:
            continue


def test_an_offset_beyond_all_memory_is_refused():
    """A header says that the sections begin there."""
    damaged = bytearray(image("histogram"))
    struct.pack_into("<Q", damaged, 0x28, 2**64 - 1)
    with pytest.raises(CubinError, match="no cubin of one kernel"):
        read_cubin(bytes(damaged))


@pytest.mark.parametrize("body, said", [
    ("sys.exit('fatal: unknown architecture')", "fatal: unknown architecture"),
    ("sys.exit(3)", "status 3"),
    ("", "no instruction of a kernel"),
    (printing(["EXIT"]), "no instruction of a kernel"),  # of the first kernel alone
    ("print('  /*ffff0*/  EXIT ;')", "an instruction at 0xffff0, behind the code"),
    ("sys.stdout.buffer.write(bytes([255]))", "no instruction of a kernel"),
    ("sys.stderr.buffer.write(bytes([255])); sys.exit(1)", "cannot read SM90"),
])  # fmt: skip
def test_code_that_is_not_disassembled_counts_as_nothing(body, said, disassembler):
    with pytest.raises(CubinError, match=said):
        instructions_of(known_cubins(), disassembler(body))


def test_a_disassembler_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CubinError, match="nvdisasm cannot be run"):
        instructions_of(known_cubins(), tmp_path / "nvdisasm")


def test_kernels_of_two_architectures_are_refused(disassembler):
    one, *_ = known_cubins()
    other = Cubin("other", "SM80", 8, 0, bytes(16))
    with pytest.raises(CubinError, match="SM80, SM90"):
        instructions_of([one, other], disassembler(""))
