"""A case: what it refuses, its id, its file name, and what its baseline must match."""

import json
import math
import re
import string

import pytest
from builders import PROPERTY
from hypothesis import example, given
from hypothesis import strategies as st

from stepguard import Case, Loop
from stepguard.core.case import from_dict

FACTORY = "model.workloads:train_step"


@pytest.mark.parametrize(("field", "value"), [
    ("name", ""),
    ("name", "a b"),
    ("name", "../etc"),
    ("name", "a\n"),
    ("name", "-n"),
    ("name", "a|b"),
    ("workload", "model.workloads"),
    ("workload", "model/workloads.py:train_step"),
    ("workload", ":train_step"),
    ("workload", "m:"),
    ("workload", "m:a.b"),
    ("device", "cuda:0"),
    ("device", ""),
    ("world_size", 0),
    ("world_size", -1),
    ("launches", 0),
    ("launches", 1),
    ("time_limit_s", 0),
    ("time_limit_s", -1.0),
    ("time_limit_s", math.nan),
    ("margins_pct", (1.0,)),
    ("margins_pct", (1.0, 1.0)),
    ("margins_pct", (2.0, 1.0)),
    ("margins_pct", (-1.0, 1.0)),
    ("margins_pct", (0.1, math.inf)),
    ("margins_pct", (math.nan, 1.0)),
    ("margins_pct", (0.1, 0.2, 0.3)),
    ("margins_pct", (None, 1.0)),
    ("margins_pct", "12"),
    ("margins_pct", 0),
    ("gates", ("step_msec",)),
    ("gates", ("tokens_per_s",)),
    ("params", {"batch": [64]}),
    ("params", {"dtype": object}),
    ("params", {"lr": math.nan}),
    ("params", {"lr": math.inf}),
    ("workload", "/tmp/train.py"),
    ("workload", "../train.py"),
    ("workload", ".py"),
    ("workload", "train.sh"),
    ("workload", "a[b].py"),
    ("workload", "-m"),
    ("workload", "-m a/b"),
    ("workload", "-m a.b c"),
    ("args", ("--lr=1",)),
    ("args", "--lr=1"),
    ("args", (1,)),
    ("loop", "optimizer"),
])  # fmt: skip
def test_a_malformed_field_is_named_with_its_value(field, value):
    """Anything malformed raises ValueError that names the field and shows the value."""
    arguments = {"name": "a", "workload": FACTORY} | {field: value}
    with pytest.raises(ValueError) as raised:
        Case(**arguments)
    message = str(raised.value)
    assert message.startswith(f"Case.{field}")
    shown = value[0] if field == "gates" else value
    if field == "params":
        (key, shown) = next(iter(value.items()))
        assert f"[{key!r}]" in message
    assert repr(shown) in message


def test_a_gate_that_is_unknown_is_reported_the_known_ones():
    """The message of a misspelt gate lists what can be gated, and only that."""
    with pytest.raises(ValueError, match="step_ms, .*graph_breaks") as raised:
        Case("a", FACTORY, gates=("step",))
    assert "tokens_per_s," not in str(raised.value)


def test_the_id_is_factory_and_name():
    """The key of a baseline is the factory and the name, whatever else the case says."""
    assert Case("124m-bf16", FACTORY).id == "train_step[124m-bf16]"
    assert Case("124m-bf16", FACTORY, {"batch": 2}, world_size=4).id == "train_step[124m-bf16]"


LETTERS = string.ascii_letters + string.digits
NAMES = st.builds(
    str.__add__, st.sampled_from(LETTERS), st.text(LETTERS + "._-", max_size=8)
)  # from_regex() draws the same in ten times as long
WORDS = st.text(string.ascii_lowercase, min_size=1, max_size=3)
FACTORIES = st.builds(
    "{}.{}:{}".format, WORDS, WORDS, st.text(string.ascii_lowercase + "_", min_size=1, max_size=5)
)


@PROPERTY
@given(NAMES, FACTORIES, NAMES, FACTORIES)
@example("x", "a.b:c", "x-", "a.b:c")
@example("gpt-cpu", "train.py", "cpu", "train-gpt.py")
@example("A", "a.b:c", "a", "a.b:c")
@example("a" * 300, "a.b:c", "a" * 299, "a.b:c")
def test_slugs_are_safe_and_differ_as_ids_do(name, factory, other_name, other_factory):
    """A slug is one file name, and two ids never share one, whatever a file system takes for
    equal.
    """
    one, other = Case(name, factory), Case(other_name, other_factory)
    assert re.fullmatch(r"\w[\w.-]{,99}", one.slug, re.ASCII)
    assert (one.slug.lower() == other.slug.lower()) == (one.id == other.id)


def test_devices_have_their_default_gates():
    """A GPU case gates times and counters, a CPU case counters alone; both can be overridden."""
    assert {"step_ms", "launches_per_step"} <= set(Case("a", FACTORY).gates)
    cpu = Case("a", FACTORY, device="cpu", launches=1)
    assert cpu.gates and not {"step_ms", "launches_per_step"} & set(cpu.gates)
    assert Case("a", FACTORY, gates=("step_ms",)).gates == ("step_ms",)


def test_one_launch_is_enough_on_a_cpu():
    """Counters are exact, so a CPU case may have a single launch."""
    assert Case("a", FACTORY, device="cpu", launches=1).launches == 1


SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)


@PROPERTY
@given(st.dictionaries(st.text("abc_", min_size=1, max_size=4), SCALARS, max_size=4))
def test_what_a_baseline_must_match_is_json(params):
    """The parameters survive JSON unchanged, in sorted order, with device and world size."""
    case = Case("a", FACTORY, params, world_size=2)
    told = case.as_dict()
    assert json.loads(json.dumps(told)) == told
    assert list(told["params"]) == sorted(params)
    assert (told["workload"], told["device"], told["world_size"]) == (FACTORY, "cuda", 2)


def test_a_case_does_not_change_with_the_callers_dict():
    """The case keeps a copy of its parameters."""
    params = {"batch": 64}
    case = Case("a", FACTORY, params)
    params["batch"] = 32
    assert case.params == {"batch": 64}


@pytest.mark.parametrize(("device", "gate", "says"), [
    ("cpu", "sync_overhead_pct", "only a case on a GPU has this metric"),
    ("cuda", "sync_candidates_per_step", "only a case on a CPU has this metric"),
    ("cuda", "collectives_per_step", "only a case of several ranks has this metric"),
])  # fmt: skip
def test_a_gate_that_the_case_cannot_have(device, gate, says):
    """Refused when the case is written, not after it was measured."""
    with pytest.raises(ValueError, match=f"{gate}.*{says}"):
        Case("a", FACTORY, device=device, gates=(gate,))


@pytest.mark.parametrize("gate", ["peak_allocated_bytes", "leaked_bytes_per_step"])
def test_memory_of_several_cpu_ranks_is_not_exact(gate):
    """gloo's threads free what a CPU's profile does not see: refused there, gated elsewhere."""
    with pytest.raises(
        ValueError, match=f"{gate}.*or of one rank without torchrun on a CPU.*world_size 2"
    ):
        Case("a", FACTORY, device="cpu", world_size=2, gates=(gate,))
    assert gate not in Case("a", FACTORY, device="cpu", world_size=2).gates
    assert gate in Case("a", FACTORY, device="cpu").gates
    assert gate in Case("a", FACTORY, world_size=2).gates
    group = Loop(torchrun=True)
    assert gate not in Case("a", "train.py", device="cpu", launches=1, loop=group).gates
    assert gate in Case("a", "train.py", loop=group).gates


@pytest.mark.parametrize("data", [("a\0b",), "data", ("/data",), ("",), (".",), ("..",), (3,)])
def test_data_is_a_tuple_of_relative_paths(data):
    """A folder that pairs link into the other tree; what is in it has no part in the baseline."""
    with pytest.raises(ValueError, match=r"Case.data .*: a tuple of relative paths, \('data',\)"):
        Case("a", FACTORY, data=data)
    named = Case("a", FACTORY, data=("data/x", "../data"))
    assert named.as_dict() == Case("a", FACTORY).as_dict()


def test_a_forgotten_tuple():
    """One gate as a string is told apart from many gates of one letter."""
    with pytest.raises(ValueError, match=r"write a tuple, \('step_ms',\)"):
        Case("a", FACTORY, gates="step_ms")


def test_margins_are_the_devices_unless_the_case_has_its_own():
    """A CPU's are wider; figures do not depend on them, so a baseline does not either."""
    gpu, cpu = Case("a", FACTORY), Case("a", FACTORY, device="cpu", launches=1)
    assert (gpu.margins.ignore_pct, gpu.margins.matter_pct) == (0.2, 0.5)
    assert (cpu.margins.ignore_pct, cpu.margins.matter_pct) == (5.0, 20.0)
    own = Case("a", FACTORY, margins_pct=(1, 3))
    assert (own.margins.ignore_pct, own.margins.matter_pct) == (1.0, 3.0)
    assert own.as_dict() == gpu.as_dict()


@pytest.mark.parametrize(("fields", "named"), [
    ({"step_at": ""}, "step_at"),
    ({"step_at": "module"}, "step_at"),
    ({"every": 0}, "every"),
    ({"every": True}, "every"),
    ({"every": 1.5}, "every"),
    ({"tokens_per_step": -1}, "tokens_per_step"),
    ({"torchrun": 1}, "torchrun"),
])  # fmt: skip
def test_a_malformed_loop_is_named(fields, named):
    """As a case's fields are."""
    with pytest.raises(ValueError, match=f"Loop.{named}"):
        Loop(**fields)


def test_a_script_has_its_own_name_and_arguments():
    """Its folder is not in its id; its arguments are compared, and have no parameters beside."""
    case = Case("b12", "examples/train.py", args=("--batch=12", "a b"))
    assert (case.id, case.slug, case.is_script) == ("train[b12]", "train-b12-852a555d846a", True)
    assert case.loop == Loop() and case.module == ""
    assert case.as_dict()["args"] == "--batch=12 'a b'"
    assert Case("a", "-m scripts.base_train").id == "base_train[a]"
    assert Case("a", "-m litgpt").id == "litgpt[a]"
    with pytest.raises(ValueError, match="a script has args"):
        Case("b12", "train.py", {"batch": 12})


@pytest.mark.parametrize("case", [
    Case("a", FACTORY, {"batch": 2}, world_size=2),
    Case("a", "train.py", args=("--batch=12", "a b", "")),
    Case("a", "-m scripts.base_train", args=("--depth=2",)),
    Case("a", "x/train.py", loop=Loop("a.b:c.d", 10, 4096)),
    Case("a", "a.b:fit", {"n": 1}, loop=Loop(every=3)),
    Case("a", "a.b:fit", loop=Loop()),
], ids=lambda case: case.id)  # fmt: skip
def test_a_case_is_read_back_from_what_a_baseline_has(case):
    """Script, factory and loop: none becomes another one."""
    found = from_dict(json.loads(json.dumps(case.as_dict())), case.gates)
    assert found.as_dict() == case.as_dict()
    assert (found.args, found.loop, found.workload) == (case.args, case.loop, case.workload)


def test_a_factory_is_told_as_before():
    """What was recorded of factories stays comparable."""
    assert Case("a", FACTORY).as_dict().keys() == {"workload", "params", "device", "world_size"}
