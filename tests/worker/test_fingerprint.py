"""What a rank says of its software and its surroundings."""

import sys
import types
from importlib import metadata

import torch

from stepguard.worker.rank_fingerprint import fingerprint

CPU = torch.device("cpu")


def test_only_variables_that_steer_are_told(monkeypatch):
    """Those of torch and its libraries, less what every launch sets; nobody's secrets."""
    names = ("TORCH_LOGS", "NCCL_DEBUG", "STEPGUARD_TOKEN", "AWS_SECRET_ACCESS_KEY")
    for name in (*names, "TORCHINDUCTOR_CACHE_DIR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    found = fingerprint(CPU)["environment"]
    assert found.keys() & {*names, "TORCHINDUCTOR_CACHE_DIR", "TORCHELASTIC_RUN_ID"} == {
        "TORCH_LOGS",
        "NCCL_DEBUG",
    }


def test_the_versions_of_what_runs_the_loop_are_told(monkeypatch):
    """Of those that the workload has imported, and of no other package."""
    for name in ("transformers", "accelerate"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "transformers", types.ModuleType("transformers"))
    assert fingerprint(CPU)["libraries"] == {"transformers": metadata.version("transformers")}
