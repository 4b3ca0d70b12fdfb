"""What `run` prints under a counter: its places, or its parts."""

from types import SimpleNamespace

from builders import evidence

from stepguard.core.evidence import Counts
from stepguard.core.site import Site
from stepguard.report.metric_list import PARTS, figures

LOSS = Site(".item()", "train.py", 10, "step", "loss.item()", "forward", 2)
LOGGED = Site(".item()", "train.py", 30, "log", "print(loss)", allowed="every 100 steps")


def printed(**counts):
    """The lines for evidence with these counts."""
    return list(figures(SimpleNamespace(evidence=evidence(counts=Counts(**counts)))))


def test_places_stand_under_their_counter():
    """Each place in a line, an allowed one with its reason."""
    lines = printed(
        values={"host_syncs_per_step": 2}, sites={"host_syncs_per_step": (LOSS, LOGGED)}
    )
    at = next(i for i, line in enumerate(lines) if line.startswith("host_syncs_per_step "))
    assert lines[at + 1 : at + 3] == [
        "    2 x .item(): loss.item() in step (train.py:10), forward",
        "    .item(): print(loss) in log (train.py:30) (allowed: every 100 steps)",
    ]


def test_a_unit_has_the_number_of_its_value():
    """One call, no calls, two calls; a unit that is no word stays as it is."""
    shown = {"operator_calls_per_step": 1, "graph_breaks": 0, "recompiles": 2, "flops_per_step": 1}
    lines = printed(values=shown)
    units = {line.split()[0]: line.split()[2] for line in lines}
    assert [units[name] for name in shown] == ["call", "breaks", "recompiles", "FLOP"]


def test_few_parts_are_shown_largest_first():
    """Two parts or more, up to PARTS, in the metric's unit; those that are zero are left out."""
    parts = {"forward": 2048, "backward": 4096, "optimizer": 0}
    values = {"peak_allocated_bytes": 4096}
    lines = printed(values=values, detail={"peak_allocated_bytes": parts})
    assert "    backward 4,096 B, forward 2,048 B" in lines
    many = {f"aten.{number}": 1 for number in range(PARTS + 1)}
    lines = printed(values={"flops_per_step": PARTS + 1}, detail={"flops_per_step": many})
    assert not any(line.startswith("    ") for line in lines)
