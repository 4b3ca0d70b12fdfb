"""The table of metrics, the verdicts' ranks and outcomes, and how values are shown."""

from typing import get_args

import pytest
from builders import replace

from stepguard.core.metrics import (
    GATEABLE,
    METRICS,
    OPERATOR_METRICS,
    Role,
    default_gates,
    format_bytes,
    format_value,
)
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, Verdict

UNIT_IN_NAME = {
    "ms": "_ms", "s": "_s", "B": "_bytes", "%": "_pct", "tok/s": "tokens_per_s", "J": "_j_per_step",
    "FLOP": "flops_per_step", "calls": "s_per_step", "settings": "settings", "numbers": "numbers",
    "lines": "_lines_per_step", "objects": "_objects_per_step", "nodes": "_nodes_per_step",
    "tokens": "tokens_per_step", "kernels": "_kernels", "breaks": "_breaks", "graphs": "_graphs",
    "syncs": "syncs_per_step", "copies": "copies_per_step", "recompiles": "recompiles",
    "% of a step": "_pct",
}  # fmt: skip


@pytest.mark.parametrize("name", METRICS)
def test_every_row_is_complete(name):
    """A metric has its key as its name, which carries its unit, and a kind that can be judged."""
    metric = METRICS[name]
    assert metric.name == name
    assert UNIT_IN_NAME[metric.unit] in name
    assert metric.kind in ("time", "counter", "difference", "information")
    assert bool(metric.role) == (metric.kind == "counter")
    assert (name in GATEABLE) == (metric.kind != "information")


def test_the_roles_of_counters():
    """What the step does may not move at all; waste and prices may fall, and so may amounts, apart
    from operators. Launches may rise by 2 %.
    """
    of = {role: {n for n, m in METRICS.items() if m.role == role} for role in get_args(Role)}
    memory = {"allocated_bytes_between_steps", "peak_allocated_bytes"}
    exact = {"flops_per_step", "tokens_per_step", "collective_bytes_per_step", "settings",
             "numbers"}  # fmt: skip
    assert of["work"] == exact
    assert of["price"] == {
        *memory,
        "collectives_per_step",
        "copies_per_step",
        "graph_breaks",
        "uncached_graphs",
    }
    assert of["waste"] == {
        "device_allocations_per_step",
        "garbage_objects_per_step",
        "growing_python_lines_per_step",
        "host_syncs_per_step",
        "leaked_bytes_per_step",
        "leaked_graph_nodes_per_step",
        "pageable_copies_per_step",
        "recompiles",
        "sync_candidates_per_step",
    }
    assert {n for n in of["amount"] if METRICS[n].exact} == set(OPERATOR_METRICS)
    assert {n for n, m in METRICS.items() if m.exact} == {*exact, *OPERATOR_METRICS}
    slack = {name: metric.slack_pct for name, metric in METRICS.items() if metric.slack_pct}
    assert slack == {"launches_per_step": 2.0, "peak_allocated_bytes": 0.05}
    floors = {name: metric.floor for name, metric in METRICS.items() if metric.floor}
    assert floors == {"spill_bytes": 65, **dict.fromkeys(memory, 512)}


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_default_gates_exist_and_gate(device, world_size):
    """Every default gate is a gateable metric that such a case has, and none stands twice."""
    gates = default_gates(device, world_size)
    assert len(set(gates)) == len(gates) > 0
    assert set(gates) <= set(GATEABLE)
    assert all(METRICS[name].exists(device, world_size) for name in gates)
    assert all(METRICS[name].kind == "counter" for name in gates) == (device == "cpu")


@pytest.mark.parametrize("name", [n for n, metric in METRICS.items() if metric.kind == "counter"])
def test_every_counter_is_gated_somewhere(name):
    """A counter that no kind of case gates unless it is told to would guard nothing."""
    kinds = [(device, size) for device in ("cuda", "cpu") for size in (1, 2)]
    assert any(name in default_gates(*kind) for kind in kinds)


def test_a_difference_is_gated_where_a_case_asks_for_it():
    """It costs a launch's worth of blocks, so no default has it."""
    differences = {name for name, metric in METRICS.items() if metric.kind == "difference"}
    assert differences and not differences & set(default_gates("cuda", 2))


def test_statuses_from_worst_to_best():
    """The order in which one verdict hides another, and what pytest makes of each."""
    assert [(status.value, status.outcome) for status in Status] == [
        ("BROKEN", "error"),
        ("UNFIT", "error"),
        ("NOT COMPARABLE", "error"),
        ("SLOWER", "failed"),
        ("CHANGED", "failed"),
        ("NO BASELINE", "error"),
        ("INCONCLUSIVE", "error"),
        ("FASTER", "passed"),
        ("same", "passed"),
    ]
    assert [status.rank for status in Status] == list(range(9))


def test_every_reason_says_something_else():
    """No two reasons share their words."""
    assert len({reason.phrase for reason in Reason}) == len(list(Reason)) > 20


def test_the_worst_gated_metric_is_a_verdicts_worst():
    """An ungated metric is never the worst, and a verdict without metrics has none."""
    fine = MetricVerdict("step_ms", Status.SAME, Reason.WITHIN_LIMIT)
    bad = MetricVerdict("graph_breaks", Status.CHANGED, Reason.COUNTER_ROSE)
    shown = MetricVerdict("compile_s", Status.BROKEN, Reason.RAISED, gated=False)
    verdict = Verdict("c", Status.CHANGED, Reason.COUNTER_ROSE, metrics=(fine, shown, bad))
    assert verdict.worst is bad
    assert Verdict("c", Status.BROKEN, Reason.RAISED, metrics=(shown,)).worst is None


def test_of_equals_the_worst_is_the_one_that_names_a_line():
    """Of two metrics that moved alike the headline gets the one that says where."""
    launches = MetricVerdict("launches_per_step", Status.CHANGED, Reason.COUNTER_ROSE)
    where = (Site(".item()", "model/gpt.py", 7),)
    syncs = MetricVerdict("host_syncs_per_step", Status.CHANGED, Reason.COUNTER_ROSE, sites=where)
    slower = MetricVerdict("step_ms", Status.SLOWER, Reason.BEYOND_LIMIT)
    verdict = Verdict("c", Status.CHANGED, Reason.COUNTER_ROSE, metrics=(launches, syncs))
    assert verdict.worst is syncs
    nowhere = replace(launches, sites=(Site("nonzero in IndexBackward0"),))
    assert replace(verdict, metrics=(nowhere, syncs)).worst is syncs
    assert replace(verdict, metrics=(launches, slower)).worst is slower
    assert replace(verdict, metrics=(launches, syncs, slower)).worst is syncs


@pytest.mark.parametrize(("name", "value", "shown"), [
    ("step_ms", 1234.56789, "1,234.568"),
    ("mfu_pct", 45.678, "45.68"),
    ("tokens_per_s", 519_123.4, "519,123"),
    ("operator_calls_per_step", 2400, "2,400"),
    ("flops_per_step", 112_123_456_789_012, "1.12123e+14"),
    ("peak_allocated_bytes", 42 * 2**30, "42.000 GiB"),
    ("peak_allocated_bytes", 9_999_999, "9,999,999 B"),
    ("graph_breaks", 0, "0"),
    ("step_ms", None, "-"),
])  # fmt: skip
def test_values_as_a_person_reads_them(name, value, shown):
    """Thousands are separated, large counts rounded, bytes in binary units, a gap is a dash."""
    assert format_value(name, value) == shown


def test_bytes_change_their_unit_at_10_mib_and_1_gib():
    """Exact bytes below 10 MiB, MiB up to 1 GiB, GiB above; a fall is shown the same way."""
    assert format_bytes(10 * 2**20 - 1) == "10,485,759 B"
    assert format_bytes(10 * 2**20) == "10.000 MiB"
    assert format_bytes(2**30) == "1.000 GiB"
    assert format_bytes(-(2**30)) == "-1.000 GiB"
