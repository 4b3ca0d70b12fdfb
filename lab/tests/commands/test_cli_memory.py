"""A recorded step of known allocations, through the file, the table and the command's page."""

import json

import torch

from stepguard.worker.counters.tally import RankStep
from stepguard.worker.rank_position import Phases
from stepguard_lab import memory
from stepguard_lab.memory import Holder, MemoryTable, memory_page
from stepguard_lab.profilers.memory_snapshot import record_memory

MIB = 2**18  # numbers of four bytes


def test_what_holds_a_step_on_a_cpu(tmp_path, shell, monkeypatch):
    """The largest block first, with its line and phase; the peak is its step's."""
    phases, kept = Phases(), []

    def step():
        phases("forward")
        kept[:] = [torch.zeros(3 * MIB)]
        phases("backward")
        torch.ones(5 * MIB).sum()
        kept.clear()

    counted = RankStep(step, torch.device("cpu"), phases)
    rank = record_memory(counted, 0, lambda text: None, folder=str(tmp_path))
    monkeypatch.setattr(memory, "ask", lambda *args, **kw: [rank])
    (tmp_path / "w.py").write_text("def f(device):\n    pass\n")
    done = shell("memory", "w:f", "device=cpu", "--json", "m.json")
    assert done.status == 0, done.err
    (found,) = json.loads((tmp_path / "m.json").read_text())["ranks"]
    new = found["peak"] - found["before"]
    assert 8 * 2**20 <= new < 8.1 * 2**20 and found["peak_phase"] == "backward"
    first, second = found["holders"][:2]
    assert first["phase"] == "backward" and "test_cli_memory.py" in first["source"]
    assert (first["operator"], first["bytes"]) == ("aten::ones", 5 * 2**20)
    assert (second["operator"], second["phase"]) == ("aten::zeros", "forward")
    assert "_memory.py:" in done.out and " step " in done.out and "backward" in done.out


def test_phases_that_are_cut_are_said_to_be():
    """The table above them has their whole names."""
    for phase, said in (("micro_step_1/backward", True), ("backward", False)):
        holders = (Holder(phase, "aten::mm", "model/gpt.py(57): forward", MIB, 1, MIB),)
        page = list(memory_page(MemoryTable(MIB, phase, 0, ((phase, MIB),), holders), {}, 16))
        assert (page[-1] == "phase 0/forward: short for micro_step_0/forward") is said
        assert any(line.startswith(phase) for line in page)
        assert any("aten::mm" in line and "gpt.py:57 forward" in line for line in page)
