"""The roofline: utilisation by the formula, work by shapes, peaks that were measured."""

import csv
import json
from xml.etree import ElementTree

import pytest
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st
from kineto import Kineto
from known_peaks import PEAKS

from stepguard.cli.main import main
from stepguard.core.profile import Work
from stepguard.explain.causes import explain
from stepguard.storage.json_file import FileError
from stepguard.trace.chrome_trace import work_of
from stepguard.trace.make_profile import profile
from stepguard_lab import measured_peaks as storage
from stepguard_lab.explanation_page import lines
from stepguard_lab.roofline import class_roofs, position


@pytest.mark.parametrize("work, us, utilisation, bound", [
    (Work(400e6, 1e6, "bf16"), 1.0, 0.5, "compute"),
    (Work(0, 2e6), 1.0, 0.5, "memory"),
    (Work(80e6, 3e6, "bf16"), 1.0, 0.75, "memory"),
])  # fmt: skip
def test_the_larger_share_counts(work, us, utilisation, bound):
    """Of the time that products and bytes need at their peaks."""
    found = position(work, us, PEAKS)
    assert (found.utilisation, found.bound) == (pytest.approx(utilisation), bound)


@pytest.mark.parametrize("work, us", [(Work(), 1.0), (Work(1e6, 1, "fp8"), 1.0), (Work(0, 1), 0)])
def test_what_is_not_known_has_no_position(work, us):
    """Neither 0 nor 100 %."""
    assert position(work, us, PEAKS) is None


def inputs(operator, dims, types, values=()):
    """What a trace says of a call."""
    return operator, *(json.dumps(one).encode() for one in (dims, types, list(values)))


BF16 = "c10::BFloat16"
Q, FLASH = [2, 1024, 12, 64], 2 * 12 * 1024 * 1024 * 64


@pytest.mark.parametrize(
    "call, work",
    [
        (inputs("aten::mm", [[8, 4], [4, 16]], [BF16] * 2), Work(1024, 448, "bf16")),
        (inputs("aten::addmm", [[16], [8, 4], [4, 16]], ["float"] * 3), Work(1024, 896, "fp32")),
        (inputs("aten::bmm", [[3, 8, 4], [3, 4, 16]], [BF16] * 2), Work(3072, 1344, "bf16")),
        (inputs("triton_poi_fused_0", [[8, 4], [], [8]], ["float", "Scalar", BF16]),
         Work(0, 144)),
        (inputs("aten::_flash_attention_forward", [Q] * 3, [BF16] * 3, ["0"] * 8 + ["True"]),
         Work(2 * FLASH, 4 * 2 * 2 * 1024 * 768, "bf16")),
        (inputs("aten::_flash_attention_backward", [Q] * 4, [BF16] * 4, ["0"] * 11 + ["False"]),
         Work(10 * FLASH, 8 * 2 * 2 * 1024 * 768, "bf16")),
        (inputs("aten::mm", [[8, 4], [5, 16]], [BF16] * 2), Work()),
        (inputs("aten::mm", [[8, 4]], [BF16]), Work()),
        (inputs("aten::bmm", "x", 7), Work()),
    ],
)  # fmt: skip
def test_work_by_shapes(call, work):
    """Products, attention and generated kernels; nothing of shapes that are none."""
    assert work_of(*call) == work


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@PROPERTY
@given(st.sampled_from(["aten::mm", "triton_x", "aten::_flash_attention_forward"]), JSON, JSON)
def test_any_shapes_are_work_or_nothing(operator, dims, types):
    """Whatever stands in the file."""
    assert isinstance(work_of(*inputs(operator, dims, types)), Work)


def a_trace(us, shapes=True):
    """Three steps with one product of 1024 x 1024 in bf16 that takes ``us``."""
    trace = Kineto(deviceProperties=[{"name": "NVIDIA H200"}])
    args = {"Input Dims": [[1024, 1024]] * 2, "Input type": [BF16] * 2} if shapes else {}
    for number in range(4):
        began = 1000.0 * number
        trace.step(number, began, began + 999)
        trace.event("cpu_op", "aten::mm", began + 1, 5, **{"External id": number}, **args)
        trace.kernel(began + 2, began + 10, began + 10 + us, "nvjet", **{"External id": number})
    return trace


def test_classes_under_the_roof_and_causes():
    """A product twice as slow is half as near to its roof; that stands beside the cause."""
    fast, slow = (profile(a_trace(us).analysis()) for us in (5.0, 10.0))
    (roof,) = class_roofs(fast, PEAKS)
    assert roof.tflops_per_s == pytest.approx(2 * 1024**3 / 5 / 1e6)
    assert roof.position.bound == "compute" and roof.known_us == roof.all_us == 5
    assert roof.position.utilisation == pytest.approx(2 * 1024**3 / 800e12 / 5e-6)
    text = " ".join(" ".join(lines(explain(fast, slow), peaks=PEAKS)).split())
    assert "54 % -> 27 % of its roof, compute-bound" in text
    assert not class_roofs(profile(a_trace(5.0, shapes=False).analysis()), PEAKS)


def test_the_picture_of_a_roofline(tmp_path, monkeypatch, capsys):
    """A circle where the product's figures are; the roofs meet at their ridge; refused without."""
    file, picture = tmp_path / "a<b.json", tmp_path / "roof.svg"
    call = ["trace", str(file), "--roofline", str(picture)]
    file.write_bytes(a_trace(5.0).text())
    monkeypatch.setattr(storage, "newest", lambda gpu: None)
    assert main(call) == 2 and "no peaks are known" in capsys.readouterr().err
    monkeypatch.setattr(storage, "newest", lambda gpu: PEAKS)
    assert main([*call, "--by-name"]) == 0
    root = ElementTree.fromstring(picture.read_text())
    (circle,) = root.iterfind(".//{*}circle")
    assert "429.5 TFLOP/s, 341.3 FLOP/byte, 54 % of its roof, compute-bound" in circle[0].text
    memory, flat = (line for line in root.iterfind(".//{*}line") if len(line))
    assert [memory.get("x2"), memory.get("y2")] == [flat.get("x1"), flat.get("y1")]
    assert flat.get("y1") == flat.get("y2") and float(memory.get("y1")) > float(memory.get("y2"))
    assert float(circle.get("cy")) > float(flat.get("y1")), "below its roof"
    assert float(circle.get("cx")) > float(flat.get("x1")), "right of the ridge at 200 FLOP/byte"
    file.write_bytes(a_trace(5.0, shapes=False).text())
    assert main(call) == 2 and "no kernel has known work" in capsys.readouterr().err


def products(sizes):
    """Return the trace of steps with a product of each size, all by one kernel; each has three
    launches besides that are shorter, but for one of the first product's.
    """
    trace = Kineto(deviceProperties=[{"name": "NVIDIA H200"}])
    for number in range(4):
        began = 1000.0 * number
        trace.step(number, began, began + 999)
        for i, size in enumerate(sizes):
            at, odd = began + 300 * i, (number, i) == (1, 0)
            args = {"External id": 10 * number + i}
            dims = {"Input Dims": [[size, 1024], [1024, 1024]], "Input type": [BF16] * 2}
            trace.event("cpu_op", "aten::mm", at + 1, 5, **args, **dims)
            trace.kernel(at + 2, at + 10, at + 10 + size, "nvjet", **args)
            for begin, us in ((at + 240, 5), (at + 250, 5), (at + 260, 15 if odd else 5)):
                trace.kernel(at + 4, begin, begin + us, "splitKreduce", **args)
    return trace


def test_a_kernel_has_a_row_for_each_product(tmp_path):
    """With its work, in CSV, too; what only prepares it has none, though it took longer once."""
    trace = products((10, 100, 100))
    rows = profile(trace.analysis()).kernels
    assert {(row.name, row.work.flops, row.calls, row.us) for row in rows} == {
        ("nvjet", 2 * 10 * 1024**2, (1,) * 3, (10,) * 3),
        ("nvjet", 2 * 100 * 1024**2, (2,) * 3, (200,) * 3),
        ("splitKreduce", 0, (9,) * 3, (45, 55, 45)),
    }
    (tmp_path / "a.json").write_bytes(trace.text())
    assert main(["trace", str(tmp_path / "a.json"), "--csv", str(tmp_path / "a.csv")]) == 0
    written = list(csv.DictReader((tmp_path / "a.csv").open()))
    for unit in ("flops", "bytes"):
        said = [float(row[f"{unit}_per_launch"] or 0) for row in written]
        assert said == [getattr(row.work, unit) for row in rows]


def test_the_table_of_kernels_has_their_products(tmp_path, capsys):
    """By which the rows of one kernel are told apart; no column where no shape is known."""
    file, plain = tmp_path / "a.json", tmp_path / "b.json"
    file.write_bytes(products((10_000, 200_000)).text())
    plain.write_bytes(a_trace(5.0, shapes=False).text())
    assert main(["trace", str(file)]) == main(["trace", str(plain)]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[-1] for row in table if row[:1] == ["nvjet"]] == ["419.4", "21.0", "5.0"]
    assert sum("GFLOP" in row for row in table) == 1


def test_the_page_has_the_roof_of_this_card(tmp_path, monkeypatch, capsys):
    """By the peaks that are kept for it; without any it says how to measure them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "a.json"
    file.write_bytes(a_trace(5.0).text())
    assert main(["trace", str(file)]) == 0
    assert "stepguard peaks" in capsys.readouterr().out
    kept = storage.save(PEAKS)
    assert main(["trace", str(file)]) == 0
    out = capsys.readouterr().out
    assert "54 %" in out and "compute" in out and "GPU-1234" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    kept.write_text('{"device_name": 1}')
    with pytest.raises(FileError, match="measure again"):
        storage.newest("NVIDIA H200")


def test_peaks_of_a_cpu_are_measured():
    """By a real copy and real products, however slow the machine is."""
    import torch

    from stepguard_lab.profilers.measure_peaks import measure

    found = measure(torch.device("cpu"), size=64, copied_bytes=1 << 16)
    assert found.copy_bytes_per_s > 0 and found.flops_per_s["fp32"] > 0
    assert found.device_name and not found.device_uuid
