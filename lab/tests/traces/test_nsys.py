"""Exports of Nsight Systems and tables of nsys stats and ncu, made by hand in their format."""

import sqlite3
from contextlib import closing

import pytest
from kineto import Kineto
from trace_exports import STRINGS, export

from stepguard.cli.main import main
from stepguard.core.profile import mean
from stepguard.trace.chrome_trace import TraceError
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import analyse, profile
from stepguard_lab.nsys_ncu_csv import Stats, read_ncu, read_stats
from stepguard_lab.nsys_sqlite import read_nsys


def parts(trace):
    """The parts of its steps, us."""
    found = profile(analyse(trace, usual_classes()))
    return {name: mean(getattr(found.parts, name)) for name in found.parts.__dataclass_fields__}


def test_an_export_says_what_a_chrome_trace_says():
    """The same events through both readers are the same profile."""
    (trace,) = read_nsys(export())
    found = profile(analyse(trace, usual_classes()))
    other = Kineto(deviceProperties=[{"name": "NVIDIA H100"}])
    for i in range(3):
        t = 1000.0 * i
        other.annotation(f"step_{i}", t, t + 999)
        other.annotation("forward", t + 0.01, t + 90)
        shape = {"grid": [2, 66, 1], "block": [384, 1, 1], "registers per thread": 168}
        other.kernel(t + 1, t + 100, t + 500, STRINGS[1], **shape, **{"shared memory": 150})
        other.copy(t + 3, t + 450, t + 600)
        other.call("cudaDeviceSynchronize", t + 5, 645)
    same = profile(other.analysis())
    assert found.parts.step_us == pytest.approx(same.parts.step_us)
    assert found.gpu == same.gpu == "NVIDIA H100"
    assert [(row.name, row.phase, row.calls, row.grid) for row in found.kernels] == [
        (row.name, row.phase, row.calls, row.grid) for row in same.kernels
    ]
    assert [(row.cause, row.call) for row in found.idle] == [("sync", "cudaDeviceSynchronize")]
    assert found.calls == same.calls
    assert parts(trace)["exposed_copies_us"] == pytest.approx(100)


def test_emitted_ranges_are_operators():
    """torch's emit_nvtx writes each operator as a range: no phase, and its name alone."""
    (trace,) = read_nsys(export())
    operators = {trace.names[i] for i in trace.operators.name}
    annotations = {trace.names[i] for i in trace.annotations.name}
    assert operators == {"aten::mm"} and "forward" in annotations and "a mark" not in annotations


def test_processes_are_ranks():
    """Correlation ids of two processes are the same numbers; they are kept apart."""
    found = read_nsys(export(second=True))
    assert len(found) == 2 and parts(found[0]) == parts(found[1])


def test_older_versions_lack_columns_and_tables():
    """What a version does not have is not used; what is needed is asked for by its name."""
    old = {"globalPid", "globalTid", "staticSharedMemory", "PROFILER_OVERHEAD", "TARGET_INFO_GPU"}
    (trace,) = read_nsys(export(without=old))
    assert parts(trace)["compute_us"] == pytest.approx(400) and trace.machine.gpu == ""
    with pytest.raises(TraceError, match="CUPTI_ACTIVITY_KIND_KERNEL has no column gridX"):
        read_nsys(export(without={"gridX"}))


@pytest.mark.parametrize(
    "without, words",
    [({"CUPTI_ACTIVITY_KIND_KERNEL"}, "no kernel of a GPU"), ({"StringIds"}, "no table StringIds")],
)
def test_no_export_of_kernels(without, words):
    """A sentence with the command."""
    with pytest.raises(TraceError, match=words):
        read_nsys(export(without=without))


@pytest.mark.parametrize("change, words", [
    ("CUPTI_ACTIVITY_KIND_KERNEL SET start = NULL", "has None in the column start"),
    ("CUPTI_ACTIVITY_KIND_KERNEL SET end = 'x'", "has 'x' in the column end"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = X'FF'", "in the column globalTid"),
    ("NVTX_EVENTS SET text = X'FF'", "in the column text"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY SET end = start - 1", "ends before it begins"),
])  # fmt: skip
def test_values_that_cannot_be_right_are_refused(change, words):
    """SQLite keeps any type in any column."""
    connection = export()
    connection.execute(f"UPDATE {change}")
    with pytest.raises(TraceError, match=words):
        read_nsys(connection)


KERN = """
 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
75.0,3000000,30,100000.0,1.0,1,2,3.4,"void cutlass::Kernel2<a, b>(int)"
25.0,"1,000,000",10,100000.0,1.0,1,2,3.4,void at::native::elementwise_kernel<4>(int)

Processing [report.sqlite] with [nvtx_gpu_proj_sum]...
Range,Style,Total Proj Time (us),Total Range Time (us),Range Instances,Proj Avg (us)
:FORWARD,PushPop,1234.5,9.0,5,246.9

Time (%),Total Time (ns),Num Calls,Avg (ns),Name
100.0,5000,2,2500,cudaStreamSynchronize
"""


def test_tables_of_nsys_stats():
    """Several in one stream, other lines between them, units in the header."""
    kernels, ranges, calls = read_stats(KERN)
    assert (kernels.kind, ranges.kind) == (Stats.KERNELS, Stats.GPU_RANGES)
    assert [(row.calls, row.total_us) for row in kernels.rows] == [(30, 3000), (10, 1000)]
    assert (ranges.rows[0].name, ranges.rows[0].total_us) == (":FORWARD", 1234.5)
    assert (calls.kind, calls.rows[0].total_us) == (Stats.CALLS, 5)


PAGE = """
 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances    Avg (ns)      Name
 --------  ---------------  ---------  ------------  ------------
    100.0       20,740,491          1  20,740,491.0  burn
"""
NCU = """==PROF== Connected to process 1
==PROF== Profiling "k" - 0: 0%....100% - 39 passes
"ID","Process ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum",\
"sm__warps_active.avg.pct_of_peak_sustained_active",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed","lts__t_sector_hit_rate.pct",\
"smsp__thread_inst_executed_per_inst_executed.ratio","launch__registers_per_thread",\
"launch__shared_mem_per_block"
"","","","","","usecond","%","%","%","","register/thread","Kbyte/block"
"0","1","void flash_fwd<1>(int)","(128, 1, 1)","(8, 12, 4)","1,566.02","12.5","40.9","67.5","32",\
"255","147.46"
"1","1","gelu","(128, 1, 1)","(8, 1, 1)","386","91.8","n/a","72.1","31","16","0"
"""


def test_launches_under_ncu():
    """Metrics in the units of their columns; what was not collected is None, not 0."""
    flash, gelu = read_ncu(NCU)
    assert (flash.name, flash.us, flash.occupancy_pct) == ("void flash_fwd<1>(int)", 1566.02, 12.5)
    assert (flash.registers, flash.shared_bytes) == (255, 147460)
    assert flash.tensor_pct is None and gelu.compute_pct is None
    assert gelu.threads_per_warp == 31


def test_decimal_commas_are_refused():
    """Read as thousands they are a thousand times too large, or too small beside others."""
    with pytest.raises(TraceError, match="compute_pct is 4,093 %.*LC_ALL=C"):
        read_ncu(NCU.replace('"40.9"', '"40,93"'))


LONG = """==PROF== Connected to process 1 (python)
"ID","Process ID","Kernel Name","Grid Size","Section Name","Metric Name","Metric Unit",\
"Metric Value"
"0","1","gemm","(8, 1, 1)","Command line profiler metrics","gpu__time_duration.sum","nsecond",\
"117,344"
"0","1","gemm","(8, 1, 1)","Command line profiler metrics",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed","%","65.77"
"1","1","gemm","(8, 1, 1)","Command line profiler metrics","gpu__time_duration.sum","usecond","14.9"
==PROF== Disconnected from process 1
"""
DETAILS = """"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value",\
"Rule Name"
"0","gelu","GPU Speed Of Light Throughput","Duration","us","7.5",""
"0","gelu","GPU Speed Of Light Throughput","Memory Throughput","%","45.2",""
"0","gelu","SpeedOfLight","","","","Bottleneck"
"0","gelu","Memory Workload Analysis","Memory Throughput","Gbyte/s","900",""
"0","gelu","Memory Workload Analysis","L2 Hit Rate","%","70",""
"0","gelu","Launch Statistics","Registers Per Thread","register/thread","128",""
"1","gelu","Memory Workload Analysis","Memory Throughput","Gbyte/s","900",""
"1","gelu","GPU Speed Of Light Throughput","Duration","us","8",""
"""


def test_a_line_for_each_metric_is_a_row_for_each_launch():
    """What ncu --csv prints by itself, with names of metrics or of the sections' pages."""
    first, second = read_ncu(LONG)
    assert (first.us, first.compute_pct, first.dram_pct) == (pytest.approx(117.344), 65.77, None)
    assert (second.name, second.us, second.compute_pct) == ("gemm", 14.9, None)
    first, second = read_ncu(DETAILS)
    figures = (first.us, first.memory_pct, first.l2_hit_pct, first.registers)
    assert figures == (7.5, 45.2, 70, 128)
    assert (second.us, second.memory_pct) == (8, None)  # bytes a second are no share


def test_active_threads_of_versions_that_have_counts_alone():
    """Threads that execute / instructions of warps."""
    text = (
        '"Kernel Name","gpu__time_duration.sum","thread_inst_executed","inst_executed"\n'
        '"","us","inst","inst"\n"k","7","640","20"\n'
    )
    assert read_ncu(text)[0].threads_per_warp == 32
    assert read_ncu(text.replace("640", ""))[0].threads_per_warp is None


@pytest.mark.parametrize("reader, text, words", [
    (read_stats, "a,b\n1,2\n", "no table of nsys stats"),
    (read_stats, KERN.replace("3000000", "many"), "no row of nsys stats"),
    (read_ncu, "x\n", "no column"),
    (read_ncu, NCU[: NCU.index('"0"')], None),
    (read_ncu, NCU[: NCU.index('"","","')], "no launch"),
    (read_ncu, NCU[:-20], "cut off"),
    (read_ncu, LONG[:-60], "cut off"),
    (read_ncu, '"Kernel Name","odd"\n"","s"\n"k","1"\n', "no metric that is read: make it"),
    (read_ncu, LONG.replace("gpu__", "x").replace("sm__", "x"), "no metric that is read"),
    (read_stats, PAGE, "a page of nsys stats; print it as CSV"),
])  # fmt: skip
def test_what_is_no_table_is_refused(reader, text, words):
    """Never an empty page for a file that was not understood."""
    if words is None:
        assert reader(text) == []
        return
    with pytest.raises(TraceError, match=words):
        reader(text)


def test_the_command_reads_them_all(tmp_path, capsys):
    """By what is in the file; 80 columns."""
    base, head = tmp_path / "r.sqlite", "step on the GPU"
    with closing(sqlite3.connect(base)) as file:
        export().backup(file)
    (tmp_path / "k.csv").write_text(KERN)
    (tmp_path / "n.csv").write_text(NCU)
    for name, words in (("r.sqlite", head), ("k.csv", "GEMM"), ("n.csv", "flash_fwd  1566.0")):
        assert main(["trace", str(tmp_path / name)]) == 0
        out = capsys.readouterr().out
        assert words in out and all(len(line) <= 80 for line in out.splitlines()[1:])
    assert main(["trace", str(base), str(tmp_path / "k.csv")]) == 2


@pytest.mark.parametrize(("name", "text", "words"), [
    ("r.nsys-rep", "", "export it: nsys export --type sqlite "),
    ("my r.ncu-rep", "", " --csv --page raw > 'my r'.csv"),
    ("r.txt", PAGE, "print it as CSV: nsys stats --format csv"),
    ("r.csv", PAGE, "print it as CSV: nsys stats --format csv"),
])  # fmt: skip
def test_what_has_to_be_exported_names_the_command(name, text, words, tmp_path, capsys):
    """A report of Nsight's own, and the page that nsys stats prints on a terminal."""
    (tmp_path / name).write_text(text)
    for command in ("trace", "analyze"):
        assert main([command, str(tmp_path / name)]) == 1
        assert words in capsys.readouterr().err
    if name.endswith("-rep"):  # the only file of a folder
        assert main(["analyze", str(tmp_path)]) == 1 and words in capsys.readouterr().err
