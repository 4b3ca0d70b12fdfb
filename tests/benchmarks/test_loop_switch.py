"""loop_switch: the same script on both sides, timed by itself."""

import torch._dynamo  # noqa: F401  # as main() does: else each side's fork imports it

from benchmarks import loop_switch


def test_both_sides_run_the_whole_script(tmp_path, monkeypatch):
    """Each returns the time that the script took; what the guarded one takes longer is no more than
    all of it.
    """
    (tmp_path / "train.py").write_text(loop_switch.SCRIPT)
    monkeypatch.chdir(tmp_path)
    found = loop_switch.measured(turns=1, steps=20)
    assert found["as it is_us"] > 0 and found["switch_us"] < found["guarded_us"]
    assert found["share_pct"] == 100 * found["switch_us"] / loop_switch.STEP_US
