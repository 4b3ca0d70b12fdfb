"""Which workload a command is about: a recorded case, or something else than that."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from stepguard.cli.common import UsageError
from stepguard.cli.workload_arguments import chosen_case, missing

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


@pytest.mark.parametrize(
    ("params", "device"), [(("batch=2",), "cuda"), (("device=cuda", "batch=2"), None)]
)
def test_another_device_than_the_recorded_one_is_refused(params, device):
    """It was measured on a CPU without a word, or asked for a GPU where a CPU was meant."""
    named = "recorded for cpu, not cuda; name its workload .*: model.workloads:train_step$"
    with pytest.raises(UsageError, match=named):
        chosen(*params, device=device, gpus=2)


SOURCE = """
def plain(width, depth=2, *, device): ...
def open_to_all(width, **options): ...
def keywords(*, size, seq=8, device="cpu"): ...
@decorated
def decorated(anything): ...
class Made:
    def __init__(self, width): ...
"""


@pytest.mark.parametrize(
    ("function", "params", "why"),
    [
        ("plain", {"width": 1}, ""),
        ("plain", {"width": 1, "depth": 3}, ""),
        ("plain", {"widht": 1}, "plain takes no widht (did you mean width?)"),
        ("plain", {}, "plain needs width: add width=..."),
        ("open_to_all", {"width": 1, "any": 2}, ""),
        ("open_to_all", {"any": 2}, "open_to_all needs width: add width=..."),
        ("keywords", {"seq": 1}, "keywords needs size: add size=..."),
        ("keywords", {"size": 1, "seq": 1}, ""),
        ("decorated", {"x": 1}, ""),  # what it takes is the decorator's to say
        ("Made", {"x": 1}, ""),
    ],
)
def test_parameters_are_compared_with_the_source(tmp_path, function, params, why):
    """As far as it tells; the device is the engine's to give."""
    (tmp_path / "mine.py").write_text(SOURCE)
    assert missing(f"mine:{function}", tmp_path, params) == why


def test_source_that_cannot_be_parsed_says_so_where_it_is_imported(tmp_path):
    """Not here, where only its parameters are asked for."""
    (tmp_path / "mine.py").write_text("def f(x) oops\n")
    assert missing("mine:f", tmp_path, {"y": 1}) == ""
