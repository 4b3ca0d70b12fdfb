"""python -m stepguard run: a table, JSON if asked for, one clear line when it cannot be."""

import json
from pathlib import Path

import pytest
from short_launches import shorten_launches

from stepguard.cli.workload_arguments import parse_params
from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason

ROOT = Path(__file__).resolve().parents[2]


def with_factories(shell, monkeypatch):
    """Lay the tests' factories into the measured tree, whose launches are real."""
    shorten_launches(monkeypatch)
    (shell.path / "factories.py").write_text((ROOT / "tests" / "factories.py").read_text())
    return shell


def test_a_sound_run(shell, monkeypatch):
    """Status 0; the figures in a table; the last line of stdout is one JSON document."""
    arguments = ("factories:linear", "n=16", "k=2", "--device", "cpu", "--json=-")
    done = with_factories(shell, monkeypatch)("run", *arguments)
    assert done.status == 0, done.err
    *table, last = done.out.splitlines()
    document = json.loads(last)
    assert document["parameters"]["params"] == {"k": 2, "n": 16}
    assert document["metrics"]["flops_per_step"] == 2 * 2 * 16**3
    assert any(line.split() == ["flops_per_step", "16,384", "FLOP"] for line in table)
    assert any(line.startswith("step_ms ") and line.endswith(" ms") for line in table)
    assert any(line.endswith(" -m stepguard explain-code METRIC") for line in table)
    assert "launch 1: block 1 of 3" in done.err


def test_what_the_workload_raises_is_shown_from_its_own_code_on(shell, monkeypatch):
    """Status 1, and one line says it; the traceback begins with the factory, and the JSON has all
    of it. What else is refused is in tests/worker/test_build.py.
    """
    arguments = ("factories:faulty", "how=raise", "at_step=0", "--device=cpu", "--json=-")
    done = with_factories(shell, monkeypatch)("run", *arguments)
    assert done.status == 1
    lines = done.err.splitlines()
    assert any("ValueError: planted" in line for line in lines), done.err
    verdict = json.loads(done.out.splitlines()[-1])["verdict"]
    assert verdict["status"] == "BROKEN"
    frames = [line for line in lines if line.startswith("  |   File ")]
    assert "/factories.py" in frames[0]
    assert not any("stepguard/worker" in frame for frame in frames)
    assert "stepguard/worker" in verdict["detail"]


@pytest.mark.parametrize(("arguments", "words"), [
    (("nofactory",), "'nofactory' has no baseline; a factory is package.module:function"),
    (("a.b:",), "write 'package.module:function'"),
    (("a.b:c", "batch"), "'batch': write key=value"),
    (("a.b:c", "n=1", "n=2"), "n is given twice"),
    (("a.b:c", "--gpus", "0"), "--gpus 0: at least 1"),
    (("a.b:c", "device=tpu"), "Case.device 'tpu': 'cuda' or 'cpu'"),
    (("a.b:c", "--device", "cuda", "--launches", "1"), "at least 2 on a GPU"),
    (("a.b:c", "lr=NaN"), "lr"),
    (("a.b:c", "lr=1e999"), "lr"),
])  # fmt: skip
def test_malformed_arguments(shell, arguments, words):
    """Refused before anything is launched, in one line, as an error of the command line."""
    shell.will_measure(shell.made())
    done = shell("run", *arguments)
    assert done.status == 2
    assert words in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""
    assert not (shell.path / ".stepguard").exists()


@pytest.mark.parametrize("arguments", [
    ("factories:linear", "n=16", "k=2", "--device", "cpu", "--gpus", "2"),
    ("factories:linear", "--device", "cpu", "n=16", "--gpus=2", "k=2"),
    ("--device=cpu", "factories:linear", "n=16", "--gpus", "2", "k=2"),
    ("--gpus", "2", "--device", "cpu", "factories:linear", "n=16", "k=2"),
])  # fmt: skip
def test_options_and_parameters_in_any_order(shell, arguments):
    """Where an option stands among the parameters changes nothing."""
    shell.will_measure(shell.made())
    done = shell("run", *arguments, "--json=-")
    assert done.status == 0, done.err
    parameters = json.loads(done.out.splitlines()[-1])["parameters"]
    assert parameters["params"] == {"n": 16, "k": 2}
    assert (parameters["device"], parameters["world_size"]) == ("cpu", 2)


@pytest.mark.parametrize("target", [".", "file/below.json"])
def test_json_that_cannot_be_written(shell, target):
    """Refused before anything is measured: status 2, one line."""
    (shell.path / "file").write_text("")
    done = shell("run", "factories:linear", "--json", target)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"stepguard: --json {target}: ") and done.err.count("\n") == 1
    assert not (shell.path / ".stepguard").exists()


def test_a_run_is_not_accepted(shell):
    """What `run` measured is no case of the suite: it never becomes a baseline."""
    shell.will_measure(shell.made())
    shell.commit()
    assert shell("run", "factories:linear").status == 0
    done = shell("accept")
    assert done.status == 1
    assert "linear[run]: not recorded, it is no case of the suite" in done.err


def test_an_interrupt(shell, monkeypatch):
    """Ctrl-C: status 130 and one line."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("stepguard.measure.suite.measure", interrupted)
    done = shell("run", "factories:linear")
    assert done.status == 130
    assert "stepguard: interrupted" in done.err


def test_a_run_that_is_ended_says_what_it_knows(shell, tmp_path):
    """What was measured by then is printed and written, and the status is that of an interrupt."""
    end = Fault(Reason.UNDECIDED, "ended by SIGTERM after 9 s, 2 s into launch 2: warm-up")
    shell.will_measure(shell.made(faults=(end,)))
    done = shell("run", "factories:linear", "--json", str(tmp_path / "one.json"))
    assert done.status == 130 and done.err.endswith("stepguard: interrupted\n")
    assert f"linear[run]: INCONCLUSIVE: {end.message}\n" in done.err
    assert "flops_per_step" in done.out
    document = json.loads((tmp_path / "one.json").read_text())
    assert document["verdict"]["figures"]["message"] == end.message


@pytest.mark.parametrize(("pair", "value"), [
    ("x=1", 1), ("x=-1", -1), ("x=1.5", 1.5), ("x=6e-4", 6e-4), ("x=true", True), ("x=True", True),
    ("x=False", False), ("x=null", None), ("x=124m", "124m"), ('x="1"', "1"), ("x=", ""),
    ("x=a=b", "a=b"), ("x=[1]", "[1]"), ("x={}", "{}"), ("x=01", "01"), ("x= 1", 1),
])  # fmt: skip
def test_parse_params(pair, value):
    """Values are JSON scalars of their own type; anything else is the string as written."""
    found = parse_params([pair])["x"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("pairs", [["x"], ["=1"], [""], ["x=1", "x=1"]])
def test_parse_params_refuses(pairs):
    """No "=", no key, a key twice: ValueError."""
    with pytest.raises(ValueError):
        parse_params(pairs)
