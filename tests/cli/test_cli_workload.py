"""Which workload a command is about: a recorded case, or something else than that."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from stepguard.cli import workload_arguments
from stepguard.cli.common import UsageError
from stepguard.cli.workload_arguments import chosen_case
from stepguard.core.case import Case

ROOT = Path(__file__).resolve().parents[2]
CASE = "train_step[nano-cpu]"  # which baselines/ has


def chosen(*params, device=None, gpus=None, factory=CASE):
    """The case that a command line chooses in this repository."""
    options = {"factory": factory, "params": list(params), "device": device, "gpus": gpus}
    return chosen_case(SimpleNamespace(**options, root=ROOT))


@pytest.mark.parametrize("params", [(), ("size=nano",), ("device=cpu",)])
def test_a_recorded_case_as_it_is_recorded(params):
    """Under its own id."""
    assert chosen(*params).id == CASE


@pytest.mark.parametrize(("params", "gpus"), [(("batch=2",), None), ((), 2)])
def test_an_experiment_has_not_the_id_of_the_recorded_case(params, gpus):
    """Or the next `accept` would make it the case's level, which asks for the last run's evidence.
    It is called as what is never recorded.
    """
    assert chosen(*params, gpus=gpus).id == "train_step[run]"


@pytest.mark.parametrize(("params", "device", "workload", "typed"), [
    (("batch=2",), "cuda", "m:f", "m:f"),
    (("device=cuda", "batch=2"), None, "m:f", "m:f"),
    ((), "cuda", "train.py", "-- train.py"),
])  # fmt: skip
def test_another_device_than_the_recorded_one_is_refused(
    params, device, workload, typed, monkeypatch
):
    """It was measured on a CPU without a word, or asked for a GPU where a CPU was meant."""
    case = Case("x", workload, device="cpu")
    monkeypatch.setattr(workload_arguments, "_recorded", lambda *_: {"cpu": case})
    named = f"recorded for cpu, not cuda; name its workload .*: {typed}$"
    with pytest.raises(UsageError, match=named):
        chosen(*params, device=device, gpus=2)
