"""Building a workload: what is no workload is refused in one line, before anything is measured."""

import re

import factories
import pytest

from stepguard.worker.session import BadWorkload, build


def test_a_workload_is_what_the_factory_returns():
    """It gets the case's parameters and the rank's device."""
    workload = build("factories:linear", {"n": 16, "k": 2}, "cpu")
    assert isinstance(workload, factories.Linear)
    assert (workload.tokens_per_step, workload.k, workload.x.device.type) == (16, 2, "cpu")


@pytest.mark.parametrize(
    ("factory", "params", "message"),
    [
        ("no_such_module:linear", {}, "no module 'no_such_module' for 'no_such_module:linear' in "),
        ("factories:sized", {}, "factories has no factory 'sized'; it has: linear, fail, faulty, "),
        (
            "factories:linear",
            {"m": 3},
            "factories:linear: got an unexpected keyword argument 'm'; its parameters: n, k, "
            "backward, compile",
        ),
        (
            "factories:linear",
            {"bachward": True, "m": 3},
            "factories:linear: got an unexpected keyword argument 'bachward' (did you mean "
            "backward?); its parameters: n, k, ",
        ),
        (
            "model.workloads:forward",
            {"bach": 4},
            "model.workloads:forward: got an unexpected keyword argument 'bach' (did you mean "
            "batch?); its parameters: size, batch, ",
        ),
        ("factories:returns_none", {}, "factories:returns_none returned NoneType without "),
        ("factories:without_tokens", {}, "factories:without_tokens returned Bare without tokens_"),
        ("factories:no_tokens", {}, "factories:no_tokens: tokens_per_step is 0, not positive"),
    ],
)
def test_what_is_no_workload_is_refused(monkeypatch, factory, params, message):
    """BadWorkload says what is wrong with the name, the parameters or the result."""
    no_tokens = factories.linear(device="cpu")
    no_tokens.tokens_per_step = 0
    monkeypatch.setattr(factories, "no_tokens", lambda device: no_tokens, raising=False)
    with pytest.raises(BadWorkload, match="^" + re.escape(message)) as caught:
        build(factory, params, "cpu")
    assert "\n" not in str(caught.value)


def test_what_a_factory_raises_passes_through(tmp_path, monkeypatch):
    """An impossible value is the factory's own to explain."""
    monkeypatch.setenv("STEPGUARD_RUN_DIR", str(tmp_path))
    with pytest.raises(ValueError, match="^planted"):
        build("factories:faulty", {"how": "raise", "at_step": 0}, "cpu")


def test_a_module_that_the_workload_misses_is_its_own_failure(tmp_path, monkeypatch):
    """It passes through with its traceback, even where its name begins as the workload's does."""
    (tmp_path / "needy_workload.py").write_text("import needy\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="'needy'"):
        build("needy_workload:make", {}, "cpu")
