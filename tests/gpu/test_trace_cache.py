"""The compiler's cache of traces finds the model's graphs: a launch would trace for seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
STEP = """
import json, torch, torch._inductor
from stepguard.worker.compile_caches import trace_own_code_anew
trace_own_code_anew()
from torch._dynamo.utils import counters
from model.workloads import train_step
shape = {"size": "nano", "batch": 2, "seq": 64, "precision": "bf16", "compile": True}
train_step(**shape, device="cuda").step()
print(json.dumps(counters["aot_autograd"]))
"""


def test_all_of_the_models_graphs_are_found(tmp_path):
    """By another process: no code of torch's own, however late it is loaded, is taken for the
    workload's.
    """
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "PYTHONPATH": path}
    command = [sys.executable, "-c", STEP]
    for _ in range(2):
        done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["autograd_cache_hit"] == found["total"] >= 1
    assert not found.get("autograd_cache_bypass", 0)
