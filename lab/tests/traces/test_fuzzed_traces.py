"""Traces edited at random: refused in one sentence, or analysed and shown."""

import contextlib
import json

from hypothesis import given, settings
from kineto import steps
from known_peaks import PEAKS
from mutated import FUZZ, FUZZED, mutated

from stepguard.core.profile import over_ranks
from stepguard.explain.causes import explain
from stepguard.storage.json_file import FileError
from stepguard.trace.chrome_trace import TraceError
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import profile
from stepguard_lab import explanation_page
from stepguard_lab.exchanges import exchanges
from stepguard_lab.memory import memory_page, memory_table
from stepguard_lab.roofline import class_roofs
from stepguard_lab.trace_files import read_ranks
from stepguard_lab.trace_page import page, roof_lines
from stepguard_lab.trace_summary import summary

HEAD = {
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
    "distributedInfo": {"rank": 0, "world_size": 2, "backend": "nccl"},
    "cuda_driver_version": 12080,
    "baseTimeNanoseconds": 1_760_000_000_000_000_000,
}
CLASSES = usual_classes()


def with_shapes_and_memory():
    """A trace of three steps with a product's shapes, and an allocation in each step."""
    trace = steps(3)
    for number in range(3):
        shapes = {"Input Dims": [[8, 4], [4, 8]], "Input type": ["float"] * 2}
        trace.event("cpu_op", "aten::mm", 1000.0 * number + 5, 9, **{"External id": 3}, **shapes)
        figures = {"Addr": 7, "Bytes": 64, "Total Allocated": 64, "Total Reserved": 64}
        allocation = {"ph": "i", "name": "[memory]", "pid": 100, "tid": 1,
                      "ts": 1000.0 * number + 6}  # fmt: skip
        trace.events.append(allocation | {"args": figures | {"Device Type": 1}})
    return json.loads(trace.text()) | HEAD


def test_fuzzed_trace_files(tmp_path):
    """Of anybody: read, analysed, compared with another, and printed; with what holds memory."""
    path, other = tmp_path / "trace.json", tmp_path / "other.json"
    other.write_bytes(steps(3).text())
    ((_, sound),) = read_ranks([other], CLASSES).values()

    @settings(FUZZ, max_examples=FUZZED // 2)
    @given(mutated(with_shapes_and_memory()))
    def fuzz(text):
        path.write_text(text)
        try:
            ((_, found),) = read_ranks([path], CLASSES).values()
        except FileError as error:
            assert str(path) in str(error)
            return
        one = summary(found, path.name, 0)
        list(page([one], exchanges([found]), 12))
        list(roof_lines(class_roofs(one.profile, PEAKS), PEAKS))
        with contextlib.suppress(TraceError):
            list(memory_page(memory_table(found.trace, CLASSES, 64, gpu=True), {}, 12))
        for pair in ((found, sound), (sound, found)):
            list(
                explanation_page.lines(
                    peaks=PEAKS, explanation=explain(*(over_ranks([profile(one)]) for one in pair))
                )
            )

    fuzz()
