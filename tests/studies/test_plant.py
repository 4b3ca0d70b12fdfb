"""studies.common.plant: what it writes into a copy."""

import shutil
import subprocess
import sys
from pathlib import Path

from undefined_names import undefined_names

ROOT = Path(__file__).parents[2]


def test_every_name_of_the_planted_code_is_known(tmp_path):
    """Of the workloads, too, which may have other names by now: a GPU is the first to run it."""
    (tmp_path / "model").mkdir()
    target = tmp_path / "model" / "workloads.py"
    shutil.copy(ROOT / "model" / "workloads.py", target)
    plant = ["-m", "studies.common.plant", str(tmp_path), "--step-ms", "5"]
    subprocess.run([sys.executable, *plant], cwd=ROOT, check=True)
    assert "5.0 ms a step" in target.read_text()
    assert undefined_names(target) == ""
