"""What a rank says of its software and its surroundings."""

import sys
import types
from importlib import metadata

import torch
from short_launches import launch_spec

from stepguard.launch.torchrun import launch_environment
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


def test_two_trees_of_one_machine_tell_the_same(tmp_path, monkeypatch):
    """Although each launch has folders of its own. Or a compile cache would never have a step of
    the base, whose tree is in a new folder each time.
    """
    told = []
    for tree in ("head", "base"):
        spec = launch_spec(tmp_path / tree, cache=tmp_path / tree / "cache")
        scratch = tmp_path / tree / "scratch"
        scratch.mkdir(parents=True)
        with monkeypatch.context() as patched:
            for item in launch_environment(spec, tree, scratch, {"NCCL_A": "1"}).items():
                patched.setenv(*item)
            told.append(fingerprint(CPU))
    assert told[0]["environment"]["NCCL_A"] == "1" and told[0] == told[1]


def test_the_versions_of_what_runs_the_loop_are_told(monkeypatch):
    """Of those that the workload has imported, and of no other package."""
    for name in ("transformers", "accelerate"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "transformers", types.ModuleType("transformers"))
    versions = fingerprint(CPU)["libraries"]
    assert torch.backends.cpu.get_cpu_capability() in versions.pop("processor")
    assert versions == {"transformers": metadata.version("transformers")}
