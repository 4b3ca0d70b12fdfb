"""A launch over two nodes, for real: an agent on each, started by a stand-in for srun.

Both nodes are this machine and keep their scratch folders in the run's temporary directory, so that
what is left of either is found there.
"""

import json
import re
import signal
import sys
from pathlib import Path

import pytest
from test_faults_worker import PAIR, case

from stepguard.worker.rank_position import endings_file, read_endings

START_TWICE = Path(__file__).resolve().parents[1] / "launch" / "start_twice.py"
COUNTED = '    Case("counted", "factories:ranks", device="cpu", launches=1, world_size=2),\n'
ALONE = '    Case("alone", "factories:linear", device="cpu", launches=1),\n'
EXPECTED = {
    "far-kill": ("KILLED", r"rank 1 was killed by SIGKILL in block, step \d+, phase backward$"),
    "far-raise": ("RAISED", r"rank 1 in block, step \d+, phase backward: ValueError: planted$"),
    "near-raise": ("RAISED", r"rank 0 in block, step \d+, phase backward: ValueError: planted$"),
    "far-hang": (
        "NO_ANSWER",
        r"rank 0 in block, step \d+, phase all_reduce; rank 1 in block, step \d+, phase backward",
    ),
    "far-agent": ("KILLED", r"processes of another node are gone and left no reason; rank 0 "),
}


@pytest.fixture(scope="module")
def two_nodes(gate_run):
    """Starts a run on two nodes: two_nodes(cases) -> the run."""
    launcher = f"{sys.executable} {START_TWICE}"
    return lambda cases, **how: gate_run(cases, STEPGUARD_LAUNCHER=launcher, **how)


@pytest.fixture(scope="module")
def finished(two_nodes):
    """A run of sound and faulty cases that is over."""
    cases = COUNTED + case("far-kill", world_size=2, how="kill", rank=1, at_step=60)
    cases += case("far-raise", PAIR, world_size=2, how="raise", rank=1, at_step=40)
    cases += case("near-raise", PAIR, world_size=2, how="raise", rank=0, at_step=40)
    cases += case("far-hang", PAIR, world_size=2, how="hang", rank=1, at_step=40)
    cases += case("far-agent", PAIR, world_size=2, how="agent", rank=1, at_step=40)
    run = two_nodes(cases + ALONE)
    assert run.finish() == 1, run.text
    return run


def metrics(run, name):
    """The counters of a case, by name."""
    return {m["metric"]: m["new"] for m in run.verdicts()[name]["metrics"] if m["gated"]}


def test_two_nodes_count_what_two_ranks_of_one_count(finished, gate_run):
    """Every counter of the training step is the same, and the figures are kept apart."""
    one = gate_run(COUNTED)
    assert one.finish() == 1, one.text
    assert finished.verdicts()["counted"]["reason"] == "NOT_RECORDED", finished.text
    found = metrics(finished, "counted")
    assert found["collectives_per_step"] > 1
    assert found == metrics(one, "counted")
    cases = json.loads((finished.folder / "run.json").read_text())["results"]
    files = [Path(case["baseline"]).name for case in cases]
    assert files.count("cpu-2-nodes.json") == len(EXPECTED) + 1


def test_each_node_ran_its_own_rank(finished):
    """Of each node's agent one rank ended, in order; one rank alone ran here."""
    (launch,) = finished.folder.glob(".stepguard/runs/*/ranks-counted-*/launch-1")
    for node in range(2):
        (ending,) = read_endings(endings_file(launch, node))
        assert ending.status == 0
    (alone,) = finished.folder.glob(".stepguard/runs/*/linear-alone-*/launch-1")
    assert not (alone / "launcher.log").exists()
    assert finished.verdicts()["alone"]["reason"] == "NOT_RECORDED"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_fault_on_either_node_is_named(finished, name):
    """Rank, step and phase; a rank that only lost its peer is not the cause."""
    verdict = finished.verdicts()[name]
    code, words = EXPECTED[name]
    assert (verdict["status"], verdict["reason"]) == ("BROKEN", code), verdict["message"]
    assert re.search(words, verdict["message"]), verdict["message"]
    if name == "far-raise":
        assert re.search(r'File ".*factories.py", line \d+', verdict["detail"]), verdict["detail"]


def test_nothing_is_left_on_either_node(finished):
    """No process, folder or socket of any launch when its test is over. What is on the other node
    the launcher ends, perhaps a moment later.
    """
    for name, record in finished.aftermath().items():
        assert record["tokens"], name
        here = [one for one in record["leftovers"] if not one.startswith("process")]
        assert (here if name.startswith("far") else record["leftovers"]) == [], name
        finished.gone(record["tokens"])
    assert list(finished.tmpdir.iterdir()) == []


HANGING = case("hang", PAIR, world_size=2, how="hang", rank=1, at_step=40)


def test_a_killed_pytest_takes_both_nodes_along(two_nodes):
    """The supervisor ends the launcher, which ends what it has started on every node."""
    run = two_nodes(HANGING, HANGS_ON="1")
    run.wait_for("hang", lambda: any(run.folder.glob(".stepguard/runs/*/*/*/failed-at")))
    tokens = run.tokens()
    endings = {token.partition("-")[2] for token in tokens}
    assert endings == {"", "1", "launcher"}, "each node's processes and the launcher's own"
    run.process.send_signal(signal.SIGKILL)
    run.finish()
    run.gone(tokens)
    assert list(run.tmpdir.iterdir()) == []
