"""The compiler's kernels are counted, with real cubins and torch's own class of records."""

import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from builders import replace
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from stepguard.core.metrics import FP64, OPERATORS, SPILLS
from stepguard.core.profile import KernelRow, MachineCode, Parts, Profile
from stepguard.core.site import Site
from stepguard.worker.counters.cubin import DISASSEMBLER
from stepguard.worker.counters.generated_kernels import (
    PLACES,
    count_machine_code,
    hash_kernels,
    launched,
    locate_machine_code,
)
from stepguard.worker.counters.tally import Tally

CUBINS = Path(__file__).parent / "cubins"
NAMES = ("add", "in_double", "histogram", "product", "spilled")  # as in all.sass
SPILLED = MachineCode(24, 224, 0, 285, 0, 0, 0)


def tuner(name, launchers=1, device="cuda"):
    """The compiler's record of a kernel."""
    record = object.__new__(CachingAutotuner)
    record.kernel_hash = f"c{name}"
    record.device_props = SimpleNamespace(type=device, index=0)
    record.launchers = [SimpleNamespace(cache_hash=name.upper(), shared=0)] * launchers
    return record


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Compiles kernels: their machine code is on disk, their records in one graph's module."""
    graph = ModuleType("graph")
    for name in NAMES:
        (tmp_path / name.upper()).mkdir()
        shutil.copy(CUBINS / f"{name}.cubin", tmp_path / name.upper())
    tool = tmp_path / "triton" / DISASSEMBLER
    tool.parent.mkdir(parents=True)
    text = str(CUBINS / "all.sass")
    tool.write_text(
        f"#!{sys.executable}\nfrom pathlib import Path\nprint(Path({text!r}).read_text())"
    )
    tool.chmod(0o755)
    triton = ModuleType("triton")
    triton.__file__ = str(tmp_path / "triton" / "__init__.py")
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(PyCodeCache, "modules", [graph])

    def made(*records):
        for number, record in enumerate(records):
            setattr(graph, f"kernel_{number}", record)
        return tmp_path

    return made


def row(name, code=""):
    return KernelRow(name, name, "Triton", "forward", (1.0,), (5.0,), code=code)


def profile_of(*rows):
    one = (10.0,)
    return Profile("NVIDIA H100", 1, Parts(one, one, one, one, one), rows, ())


def counted(profile=None):
    tally = Tally(profile=profile)
    count_machine_code(tally, None)
    return tally


def test_spills_and_fp64_are_summed_with_their_kernels(compiled):
    compiled(*map(tuner, NAMES))
    tally = counted()
    assert tally.values == {SPILLS: 224, FP64: 1} and not tally.unstable
    assert tally.detail == {SPILLS: {"spilled": 224}, FP64: {"in_double": 6}}


def test_a_kernel_of_a_template_gets_the_hash_of_its_compiled_form(compiled):
    """The compiler gives it none. One that has a hash keeps it. One that never ran has no form."""
    records = [tuner("add"), tuner("product"), tuner("spilled"), tuner("histogram", launchers=0)]
    for record in (*records[:2], records[3]):
        record.kernel_hash = ""
    compiled(*records)
    for _ in range(2):
        hash_kernels()
        assert [one.kernel_hash for one in records] == ["ADD", "PRODUCT", "cspilled", ""]
    assert [kernel.source for kernel in launched()] == ["ADD", "PRODUCT", "cspilled"]


def test_a_kernel_of_another_torch_gets_no_hash(compiled):
    """Where the compiler's records are others, no hash is made up, and a profile is still taken."""
    unknown, older = tuner("add"), tuner("product")
    unknown.kernel_hash, unknown.launchers[0].cache_hash = "", None
    del older.kernel_hash
    bare = tuner("spilled")
    bare.kernel_hash = ""
    del bare.launchers[0].cache_hash
    compiled(unknown, older, bare)
    hash_kernels()
    assert unknown.kernel_hash == bare.kernel_hash == "" and not hasattr(older, "kernel_hash")


def test_a_step_without_generated_kernels_has_none(compiled):
    """The disassembler is not even started."""
    (compiled() / "triton" / DISASSEMBLER).unlink()
    assert counted().values == {SPILLS: 0, FP64: 0}


def test_a_kernel_counts_once_and_if_it_ran(compiled):
    """Two graphs share a kernel. A kernel that never ran has all its forms, or none. A CPU's has
    no machine code for a GPU.
    """
    twice = tuner("spilled")
    others = [tuner("histogram", 0), tuner("in_double", 2), tuner("add", device="cpu")]
    compiled(*map(tuner, NAMES), twice, *others)
    assert counted().values == {SPILLS: 224, FP64: 1}


def test_a_profile_has_the_machine_code_of_the_kernel_and_its_source(compiled):
    compiled(*map(tuner, NAMES))
    rows = row("spilled", "cspilled"), row("gemm"), replace(row("spilled"), code="cspilled")
    kernels = counted(profile_of(*rows)).profile.kernels
    assert [kernel.machine_code for kernel in kernels] == [SPILLED, None, SPILLED]


def test_a_generated_kernel_without_a_record_is_no_zero(compiled):
    """The profile shows that it ran."""
    compiled(*map(tuner, NAMES))
    tally = counted(profile_of(row("spilled", "cspilled"), row("lost", "clost")))
    assert not tally.values and "the compiler's records lack lost" in tally.unstable[FP64]
    assert tally.unstable.keys() == {SPILLS, FP64} and tally.profile is not None


def no_disassembler(folder):
    (folder / "triton" / DISASSEMBLER).unlink()


def no_file(folder):
    (folder / "ADD" / "add.cubin").unlink()


def another_file(folder):
    (folder / "ADD" / "add.cubin").write_bytes(b"no cubin")


@pytest.mark.parametrize("broken, said", [
    (no_disassembler, "nvdisasm: triton's own wheel brings it"),
    (no_file, "ADD has 0 cubins instead of one"),
    (another_file, "it is no cubin of one kernel: it is no ELF file"),
])  # fmt: skip
def test_what_cannot_be_read_is_said(broken, said, compiled):
    broken(compiled(*map(tuner, NAMES)))
    tally = counted()
    assert not tally.values
    for metric in (SPILLS, FP64):
        assert said in tally.unstable[metric]
        assert tally.unstable[metric].endswith("take the metric out of the case's gates")


def test_another_torch_whose_records_differ_is_no_zero(compiled):
    record = tuner("add")
    del record.kernel_hash
    compiled(record)
    assert "this torch does not say where its kernels are" in counted().unstable[SPILLS]


def placed(kernel, *operators, metric=FP64):
    """The places of a kernel, given the step's operators: (what, line)."""
    tally = Tally(values={metric: 6}, detail={metric: {kernel: 6}})
    tally.sites[OPERATORS] = operators
    locate_machine_code(tally, None)
    return [(site.what, site.line, site.count) for site in tally.sites[metric]]


def operator(what, line, phase=""):
    return Site(what, "model/gpt.py", line, "forward", f"line {line}", phase)


GELU = "triton_poi_fused_gelu_mul_5"


def test_a_kernel_has_the_line_of_the_operator_in_its_name():
    """Not that of another operator, nor the line that starts a backward pass."""
    backward = operator("aten.gelu_backward.default", 30, "backward")
    operators = operator("aten.gelu.default", 12), operator("aten.add.Tensor", 13), backward
    assert placed(GELU, *operators) == [("triton_poi_fused_gelu_mul", 12, 1)]


def test_a_kernel_of_several_operators_has_all_their_lines():
    """But fp64 comes from a cast to it, if there is one."""
    gelu, mul = operator("aten.gelu.default", 12), operator("aten.mul.Tensor", 14)
    assert [line for _, line, _ in placed(GELU, gelu, mul)] == [12, 14]
    cast = operator("aten._to_copy[float64].default", 16)
    kernel = "triton_poi_fused__to_copy_gelu_mul_5"
    assert [line for _, line, _ in placed(kernel, gelu, mul, cast)] == [16]
    assert [line for _, line, _ in placed(kernel, gelu, mul, cast, metric=SPILLS)] == [12, 14, 16]


def test_a_kernel_of_many_lines_has_none():
    many = [operator("aten.mul.Tensor", line) for line in range(PLACES + 1)]
    assert placed(GELU, *many) == [("triton_poi_fused_gelu_mul", 0, 1)]
    assert placed(GELU) == [("triton_poi_fused_gelu_mul", 0, 1)]
