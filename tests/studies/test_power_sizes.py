"""studies/power: the steps of several trees in one process, each as it runs alone."""

import json
import subprocess
import sys

from studies.common.results import ROOT

TREE = """
import torch

{setting}

class TrainStep:
    def step(self):
        assert torch.backends.cuda.cudnn_sdp_enabled() is {cudnn}


def train_step(**params):
    return TrainStep()
"""


def tree(folder, cudnn=True):
    """A tree that allows cuDNN's attention or not, and fails where it runs with the other."""
    setting = "" if cudnn else "torch.backends.cuda.enable_cudnn_sdp(False)"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "__init__.py").touch()
    (folder / "model" / "workloads.py").write_text(TREE.format(setting=setting, cudnn=cudnn))
    return str(folder)


def test_what_one_tree_allows_of_attention_is_not_what_the_others_run_with(tmp_path):
    """A setting of the whole process counts for the tree that has it, built and run between two
    that have not.
    """
    trees = [tree(tmp_path / "a"), tree(tmp_path / "b", cudnn=False), tree(tmp_path / "c")]
    command = [sys.executable, "-m", "studies.power.sizes", *trees, "--device=cpu", "--seconds=0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 2
