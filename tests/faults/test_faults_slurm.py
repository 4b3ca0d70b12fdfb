"""Two nodes under a real SLURM, where its packages are and we are root: see the script."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from leftovers import processes

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "scripts" / "slurm_two_nodes.sh"
LAUNCHER = "srun --overlap --nodes=2 --ntasks-per-node=1"
RUN = f"{sys.executable} -m stepguard run --gpus 2"
LONG_S = 900
HAS_SLURM = all(map(shutil.which, ("slurmctld", "slurmd", "srun", "munged"))) and os.getuid() == 0


@pytest.mark.skipif(not HAS_SLURM, reason="needs slurmctld, slurmd, srun, munged, and root")
def test_srun_starts_an_agent_on_each_node(tmp_path):
    """A case is measured over two nodes; a rank that is killed on the second one is named; and
    nothing is left of either launch.
    """
    (tmp_path / "factories.py").write_text((ROOT / "tests" / "factories.py").read_text())
    (tmp_path / "tmp").mkdir()
    (tmp_path / "both.sh").write_text(
        f"{RUN} factories:ranks device=cpu --json sound.json\n"
        f"{RUN} factories:pair device=cpu how=kill rank=1 at_step=60 --json killed.json\n"
    )
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "TMPDIR": str(tmp_path / "tmp")}
    env |= {"SLURM_TWO_NODES_PORT": str(port), "CUDA_VISIBLE_DEVICES": ""}
    env |= {"STEPGUARD_LAUNCHER": LAUNCHER}
    command = [str(CLUSTER), "sh", "both.sh"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=tmp_path, env=env, timeout=LONG_S, **pipes)
    assert done.returncode == 1, done.stdout
    sound = json.loads((tmp_path / "sound.json").read_text())
    assert sound["parameters"]["nodes"] == 2 and sound["metrics"]["collectives_per_step"] > 1
    killed = json.loads((tmp_path / "killed.json").read_text())
    assert killed["verdict"]["reason"] == "KILLED"
    assert "rank 1 was killed by SIGKILL in block" in killed["text"]["message"]
    assert not processes(tmp_path / "tmp")
