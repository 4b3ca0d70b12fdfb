"""make demo, as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from short_launches import BUSY_LIMIT_S, CONFTEST, NANO, SMALLER

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_names_its_plant():
    """The gate fails in the copy, at the planted line, and the demo says so with status 0."""
    inherited = ("PYTEST_", "TORCHINDUCTOR_")  # what tests add; its baseline knows none of it
    env = {key: value for key, value in os.environ.items() if not key.startswith(inherited)}
    command = [sys.executable, "scripts/demo.py"]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=BUSY_LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CHANGED: sync_candidates_per_step 0 -> " in done.stdout
    assert "demo: the gate failed at model/workloads.py:" in done.stdout
    assert "self.last_loss = loss.item() in TrainStep._micro_step" in done.stdout
    # Nothing is named that is deleted with the copy.
    named = ("accept: ", "-m stepguard waive", ".stepguard/runs")
    assert not [text for text in named if text in done.stdout]


def test_another_torch_is_recorded_first(tmp_path, monkeypatch):
    """Under a torch that no recording is of, the copy's own step becomes the only recording; who
    signs commits is not asked to sign that of the copy.
    """
    for name, value in (("COUNT", "2"), ("KEY_0", "commit.gpgsign"), ("VALUE_0", "true")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    monkeypatch.setenv("GIT_CONFIG_KEY_1", "gpg.program")
    monkeypatch.setenv("GIT_CONFIG_VALUE_1", "/bin/false")
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import demo

    monkeypatch.setattr(demo.metadata, "version", lambda name: "2.8.0+cpu")
    assert not demo.is_recorded()
    copy = tmp_path / "copy"
    copy.mkdir()
    demo.copy(copy)
    shorter = ("perf_tests/parameters.py", '"seq": 64', '"seq": 16')
    for name, old, new in (("model/config.py", NANO, SMALLER), shorter):
        assert old in (text := (copy / name).read_text())
        (copy / name).write_text(text.replace(old, new))
    (copy / "conftest.py").write_text(CONFTEST)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    demo.record(copy)
    assert list(json.loads((copy / demo.BASELINE).read_text())["cases"]) == [demo.CASE]
