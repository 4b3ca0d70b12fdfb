"""Building a workload: what is no workload is refused in one line, before anything is measured."""

import re
import sys

import factories
import pytest

from stepguard.worker.workload import BadWorkload, build


def test_a_workload_is_what_the_factory_returns():
    """It gets the case's parameters and the rank's device."""
    workload = build("factories:linear", {"n": 16, "k": 2}, "cpu")
    assert isinstance(workload, factories.Linear)
    assert (workload.tokens_per_step, workload.k, workload.x.device.type) == (16, 2, "cpu")


@pytest.mark.parametrize(("factory", "params", "message"), [
    ("no_such_module:linear", {}, "no module 'no_such_module' for 'no_such_module:linear' in "),
    ("factories:sized", {}, "factories has no factory 'sized'; it has: linear, fail, faulty, "),
    (
        "factories:linear",
        {"m": 3},
        "factories:linear: got an unexpected keyword argument 'm'; its parameters: n, k, "
        "backward, compile",
    ),
    ("factories:linear", {"bachward": True, "m": 3},
     "factories:linear: no parameter 'bachward' (did you mean backward?); its parameters: "),
    ("model.workloads:forward", {"bach": 4},
     "model.workloads:forward: no parameter 'bach' (did you mean batch?); its parameters: "),
    ("factories:needs_width", {"wdith": 3},
     "factories:needs_width: no parameter 'wdith' (did you mean width?); its parameters: "),
    (
        "factories:without_tokens",
        {"width": 3},
        "factories:without_tokens: got an unexpected keyword argument 'width'; its parameters: "
        "none but device",
    ),
    ("factories:without_device", {},
     "factories:without_device has no parameter 'device', with which every factory is"),
    ("factories:returns_none", {}, "factories:returns_none returned None without step and "),
    ("factories:without_tokens", {}, "factories:without_tokens returned a Bare without tokens"),
    ("factories:no_tokens", {}, "factories:no_tokens: tokens_per_step is 0, not a positive"),
    ("factories:none_tokens", {}, "factories:none_tokens: tokens_per_step is None, not a "),
])  # fmt: skip
def test_what_is_no_workload_is_refused(monkeypatch, factory, params, message):
    """BadWorkload says what is wrong with the name, the parameters or the result."""
    for name, tokens in (("no_tokens", 0), ("none_tokens", None)):
        workload = factories.linear(device="cpu")
        workload.tokens_per_step = tokens
        monkeypatch.setattr(factories, name, lambda device, one=workload: one, raising=False)
    monkeypatch.setattr(factories, "needs_width", lambda width, device: None, raising=False)
    monkeypatch.setattr(factories, "without_device", lambda: None, raising=False)
    with pytest.raises(BadWorkload, match="^" + re.escape(message)) as caught:
        build(factory, params, "cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "names"), [
    ("def maker():\n    def inner(device): ...\n    return inner\n\nmade = maker()\n",
     "maker, made"),
    ("from json import load\n_own = lambda device: None\n", "none"),
])  # fmt: skip
def test_the_factories_that_there_are_have_the_names_to_type(tmp_path, monkeypatch, text, names):
    """The module's, not those that they were defined by."""
    (tmp_path / "typed.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "typed", raising=False)
    with pytest.raises(BadWorkload, match=f"it has: {names}$"):
        build("typed:mad", {}, "cpu")


def test_what_a_factory_raises_passes_through(tmp_path, monkeypatch):
    """An impossible value is the factory's own to explain."""
    monkeypatch.setenv("STEPGUARD_RUN_DIR", str(tmp_path))
    with pytest.raises(ValueError, match="^planted"):
        build("factories:faulty", {"how": "raise", "at_step": 0}, "cpu")


@pytest.mark.parametrize("name", ["pkg/train.py", "pkg.py"])
def test_a_module_in_a_folder_that_no_rank_imports_from(tmp_path, monkeypatch, name):
    """pytest.ini's ``pythonpath = src`` is pytest's alone: the error says what a rank takes."""
    (tmp_path / "src" / name).parent.mkdir(parents=True)
    (tmp_path / "src" / name).touch()
    monkeypatch.chdir(tmp_path)
    factory = "pkg.train:make" if "/" in name else "pkg:make"
    with pytest.raises(BadWorkload) as refused:
        build(factory, {}, "cpu")
    assert str(refused.value) == (
        f"no module 'pkg' for {factory!r} in {tmp_path}; it is in src: begin the command with: "
        "env PYTHONPATH=src"
    )


@pytest.mark.parametrize("text", ["import mygpt\n", "def make(device):\n    import mygpt\n"])
def test_a_module_in_a_folder_that_the_workload_misses(tmp_path, monkeypatch, text):
    """Of a project with a src layout the factory is found and what it measures is not: the failure
    says what a rank takes, for an import at the top and within the factory.
    """
    (tmp_path / "src" / "mygpt").mkdir(parents=True)
    (tmp_path / "outside_src.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "outside_src", raising=False)
    with pytest.raises(ModuleNotFoundError, match="begin the command with: env PYTHONPATH=src$"):
        build("outside_src:make", {}, "cpu")


def test_a_module_that_the_workload_misses_is_its_own_failure(tmp_path, monkeypatch):
    """It passes through with its traceback, even where its name begins as the workload's does."""
    (tmp_path / "needy_workload.py").write_text("import needy\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="'needy'$"):
        build("needy_workload:make", {}, "cpu")
