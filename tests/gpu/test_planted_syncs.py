"""A host sync planted into a copy of the workload is reported with its line. Needs a GPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROOT = Path(__file__).resolve().parents[2]
ANCHOR = "            loss = self._forward(*self._loader.next()) / count\n"
DRIVER = """
import json, msgspec, torch
from stepguard.worker.counters.counting import count_compiled
from stepguard.worker.counters.syncs import locate_syncs
from stepguard.worker.counters.tally import RankStep
from stepguard.worker.workload import build
from stepguard.worker.rank_position import Phases

phases = Phases()
params = {"size": "nano", "batch": 4, "seq": 64, "micro_steps": 2, "compile": False}
workload = build("model.workloads:train_step", params, "cuda")
workload.on_phase = phases
workload.step()
counted = RankStep(workload.step, torch.device("cuda", 0), phases)
tally = count_compiled(counted, lambda text: None)
locate_syncs(tally, counted, tally.calls)
print("COUNTED " + json.dumps(msgspec.to_builtins(tally.counts())))
"""
PLANTS = {
    "item": ("loss.item()", ".item()"),
    "cpu": ("loss.detach().cpu()", "copy to the host"),
    "print": ("print(loss.detach())", ""),
    "synchronize": ("torch.cuda.synchronize()", "torch.cuda.synchronize()"),
    "if": ("assert loss > 0", "truth of a tensor"),
    "nonzero": ("torch.nonzero(loss.detach().view(1))", "nonzero"),
    "stream": ("torch.cuda.current_stream().synchronize()", "stream synchronize"),
    "pageable": ("torch.zeros(64, 64).to(loss.device)", "pageable copy to the GPU"),
    "pinned": ("torch.zeros(64).pin_memory().to(loss.device)", "blocking copy to the GPU"),
    "event": ("event = torch.cuda.Event(); event.record(); event.synchronize()", "Event.sync"),
    "hook": ("loss.register_hook(lambda grad: grad.item() and None)", ".item()"),
}


def counted(folder: Path, plant: str) -> tuple[dict[str, Any], int]:
    """What the counting pass says of a copy with ``plant`` after the forward pass; its line."""
    shutil.copytree(ROOT / "model", folder / "model")
    target = folder / "model" / "workloads.py"
    before, found, after = target.read_text().partition(ANCHOR)
    assert found
    target.write_text(before + found + (f"            {plant}\n" if plant else "") + after)
    environment = os.environ | {
        "PYTHONPATH": f"{folder}:{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("COUNTED ")]
    assert lines, done.stderr[-2000:]
    return json.loads(lines[0].removeprefix("COUNTED ")), (before + found).count("\n") + 1


def test_the_clean_step_has_none(tmp_path: Path):
    """The committed training step never makes the host wait, and copies only from pinned memory."""
    told, _ = counted(tmp_path, "")
    assert not told["unstable"]
    assert told["values"]["host_syncs_per_step"] == 0
    assert told["values"]["pageable_copies_per_step"] == 0


@pytest.mark.parametrize("name", list(PLANTS))
def test_a_planted_sync_is_located(tmp_path: Path, name: str):
    """File, line, function, text and phase are those of the plant, in each of two micro-steps."""
    plant, what = PLANTS[name]
    told, line = counted(tmp_path, plant)
    print(f"PLANT {name}: {json.dumps(told['sites']['host_syncs_per_step'])}")
    assert told["values"]["host_syncs_per_step"] >= 2
    (site,) = told["sites"]["host_syncs_per_step"]
    assert (site["file"], site["line"], site["text"]) == ("model/workloads.py", line, plant)
    assert site["function"] == "TrainStep._micro_step" + (".<lambda>" if name == "hook" else "")
    assert what in site["what"]
    phase = "backward" if name == "hook" else "forward"
    assert site["phase"] == f"{phase}, each micro-step"


def test_a_sync_of_autograd_has_the_line_that_starts_the_pass(tmp_path: Path):
    """A mask makes the host wait twice: where it is applied, and in the backward pass."""
    told, line = counted(tmp_path, "loss = loss.view(1)[loss.detach().view(1) > -1].sum()")
    forward, backward = told["sites"]["host_syncs_per_step"]
    assert (forward["line"], forward["phase"]) == (line, "forward, each micro-step")
    assert "backward()" in backward["text"] and backward["phase"] == "backward, each micro-step"
    assert "IndexBackward0" in backward["what"]
