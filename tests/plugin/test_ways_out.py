"""What a red run prints as the way out is done as printed, and the next run is green."""

import json
import re
import shlex

import pytest

from stepguard.cli.main import main

# Each line that may end a red case's lines, by the way that it names.
WAYS = {
    "accept": r"accept: (commit (?P<file>\S+), measure again, then )?(?P<command>.*)",
    "waive": r"(or for some days|if it is meant, in this change): (?P<command>\S.* waive .*)",
    "merge": r"(if it is meant: no waiver passes other work; )?after the merge, on main: "
    r"(?P<measure>.*), then (?P<command>.* accept .*'\.\.\.')(; then remove the waiver)?",
    "look": r"(look closer|what that is): .*",
}
BESIDE = "--perf-against=old"


def ways_out(gate, *options):
    """Run the suite, which is red. Return the ways out that it prints, each with its lines."""
    run = gate.run("perf_tests", "--perf-json=run.json", *options)
    assert run.ret == 1, str(run.stdout)
    (case,) = json.loads((gate.path / "run.json").read_text())["results"]
    end = next(at for at, line in enumerate(run.outlines) if line.startswith("  look closer: "))
    found = {}
    for line in run.outlines[end + 1 - len(case["text"]["steps"]) : end + 1]:
        forms = ((way, re.fullmatch(f"  {form}", line)) for way, form in WAYS.items())
        fitting = {way: match for way, match in forms if match}
        ((way, match),) = fitting.items()
        found.setdefault(way, []).append(match.groupdict())
    del found["look"]
    return found


def types(gate, command):
    """Type a command as a reader does, who puts in a reason and a number of days."""
    words = shlex.split(command.replace("'...'", "'it is worth it'").replace(" N", " 30"))
    start = next(at for at, word in enumerate(words) if word in ("pytest", "stepguard"))
    if words[start] == "pytest":
        gate.run(*words[start + 1 :])
    else:
        assert main(words[start + 1 :]) == 0


def follow(gate, way, lines):
    """Do what the lines of a way say."""
    (line, *_) = lines
    if way == "merge":
        types(gate, line["measure"])
    if line.get("file"):
        gate.git("add", line["file"])
        gate.git("commit", "-q", "-m", line["file"])
        gate.run("perf_tests")
    types(gate, line["command"])


def on_cpu(gate, **changes):
    """A case with a recording, whose step is another now."""
    case = gate.guarded()
    in_folder(gate)
    gate.will_measure(case, **changes)


def in_folder(gate):
    """Put the test where the printed commands look for it, and commit all as somebody."""
    (gate.path / "perf_tests").mkdir()
    (gate.path / "test_perf.py").rename(gate.path / "perf_tests" / "test_perf.py")
    gate.commit(tag="old")
    gate.git("config", "user.name", "A. Author")


def a_sync(gate, h200):
    """And the operator that it is made of."""
    on_cpu(gate, counters={"sync_candidates_per_step": 11, "operator_calls_per_step": 101})


def other_work(gate, h200):
    """More FLOPs."""
    on_cpu(gate, counters={"flops_per_step": 2000})


def uncommitted(gate, h200):
    """A file that is in no commit yet."""
    on_cpu(gate, counters={"graph_breaks": 2})
    (gate.path / "new.txt").write_text("")


def unrecorded(gate, h200):
    """A case that has no recording."""
    gate.suite(gate.cpu())
    in_folder(gate)


def parameters(gate, h200):
    """A case that was recorded with others."""
    on_cpu(gate)
    path = gate.path / "perf_tests" / "test_perf.py"
    path.write_text(path.read_text().replace("params={}", "params={'n': 3}"))
    gate.commit()


def slower(gate, h200):
    """By a recorded time, and in pairs with the recording's commit."""
    case = gate.recorded(h200)
    in_folder(gate)
    gate.will_compare(case, 10.0)


def beside(gate, h200, pct=0.0, **head):
    """A case beside the commit before."""
    gate.gpus = [h200]
    case = gate.cuda()
    gate.suite(case)
    in_folder(gate)
    gate.commit()
    gate.will_compare(case, pct, head={"counters": head})
    gate.will_measure(case, step_ms=10.0 + pct / 10, counters=head)


def slower_beside(gate, h200):
    """By time alone."""
    beside(gate, h200, 10.0)


def breaks_beside(gate, h200):
    """By two counters."""
    beside(gate, h200, graph_breaks=2, unique_graphs=3)


def work_beside(gate, h200):
    """Other FLOPs: no step that a time could be compared with."""
    beside(gate, h200, flops_per_step=2000)


RED = {(a_sync, ()): {"accept", "waive"}, (other_work, ()): {"accept", "waive"},
       (uncommitted, ()): {"accept", "waive"}, (unrecorded, ()): {"accept"},
       (parameters, ()): {"accept"}, (slower, ()): {"accept", "waive"},
       (slower_beside, (BESIDE,)): {"waive", "merge"},
       (breaks_beside, (BESIDE,)): {"waive", "merge"},
       (work_beside, (BESIDE,)): {"merge"}}  # fmt: skip


@pytest.mark.parametrize(
    ("red", "options", "way"), [(*red, way) for red, ways in RED.items() for way in sorted(ways)]
)
def test_the_way_out_leads_out(gate, h200, red, options, way):
    """Each line is followed by itself."""
    red(gate, h200)
    found = ways_out(gate, *options)
    assert found.keys() == RED[red, options]
    follow(gate, way, found[way])
    again = gate.run("perf_tests", *(() if way == "merge" else options))
    assert again.ret == 0, str(again.stdout)
