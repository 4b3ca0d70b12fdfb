"""The pytest process itself is killed or interrupted: its launches end with it, whole."""

import signal
import time

import pytest

from stepguard.core.reasons import Reason
from stepguard.core.run_document import End
from stepguard.storage.run_document_file import load_document

BLOCK = (
    '    Case("hang", "factories:faulty", {"how": "hang", "at_step": 60}, device="cpu",'
    " launches=1),\n"
)
IMPORT = '    Case("hang", "sleeper:factory", device="cpu", launches=1),\n'
PAIR = BLOCK.replace("launches=1", "launches=1, world_size=2")
STATES = {  # cases, how many ranks, the note of a rank that is there
    "import": (IMPORT, 1, "start|"),
    "block": (BLOCK, 1, "block|"),
    "block of two ranks": (PAIR, 2, "block|"),
}
ENDS = [("block", signal.SIGTERM)]  # what a scheduler sends
KILLS = [(state, signal.SIGKILL) for state in STATES] + ENDS
STARTED_EARLY = [*KILLS[1:], ("block", "once"), ("block", "twice")]  # side by side: they wait


@pytest.fixture(scope="module")
def waiting(gate_run):
    """Runs whose ranks hang in the state that they were started for, by state and what comes."""
    return {key: started(gate_run, *key) for key in STARTED_EARLY}


def started(gate_run, state, number):
    """A run that is to be killed, or interrupted."""
    return gate_run(STATES[state][0], HANGS_ON="1")


def reach(run, state):
    """Wait until the run's ranks are in the state; the tokens of its launches."""
    _, ranks, note = STATES[state]

    def there():
        notes = [text for text in run.notes() if text.startswith(note)]
        hangs = any(run.folder.glob(".stepguard/runs/*/*/*/failed-at"))
        return len(notes) == ranks and hangs

    run.wait_for(state, there)
    return run.tokens()


def test_a_pytest_killed_while_workers_import(gate_run):
    """As below, while the ranks import the workload and have not said hello."""
    run = started(gate_run, "import", signal.SIGKILL)
    killed(run, "import", signal.SIGKILL)


@pytest.mark.parametrize(("state", "number"), KILLS[1:], ids=lambda value: str(value))
def test_a_killed_pytest_takes_its_launch_along(waiting, state, number):
    """Killed in any state: soon no process, no temporary folder and no socket is left."""
    killed(waiting[state, number], state, number)


def killed(run, state, number):
    """Kill the run in the state; look at what is left."""
    tokens = reach(run, state)
    assert tokens
    run.process.send_signal(number)
    assert run.finish() == (-number if number is signal.SIGKILL else pytest.ExitCode.INTERRUPTED)
    if number is not signal.SIGKILL:
        document = load_document(run.folder / "run.json")
        assert document.end is End.INTERRUPTED and not document.passed
        (result,) = document.results
        assert result.verdict.reason is Reason.UNDECIDED
        assert f"ended by {number.name} after " in result.text.headline
    print(f"{number.name} in {state}: nothing left after {run.gone(tokens):.2f} s")
    assert list(run.tmpdir.iterdir()) == []


def once(run):
    """One Ctrl-C."""
    run.process.send_signal(signal.SIGINT)


def twice(run):
    """A second Ctrl-C as soon as the first one shows."""
    before = len(run.tokens())
    run.process.send_signal(signal.SIGINT)
    run.wait_for_change(lambda: len(run.tokens()) != before)
    run.process.send_signal(signal.SIGINT)


def many(run):
    """Ctrl-C after Ctrl-C until it has ended."""
    while run.process.poll() is None:
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.001)


@pytest.mark.parametrize("interrupt", [once, twice, many], ids=lambda f: f.__name__)
def test_ctrl_c_leaves_nothing(gate_run, waiting, interrupt):
    """Interrupted while a rank hangs that ignores TERM and INT: pytest ends, nothing is left."""
    run = waiting.get(("block", interrupt.__name__)) or started(gate_run, "block", "many")
    tokens = reach(run, "block")
    began = time.monotonic()
    interrupt(run)
    status = run.finish()
    took = time.monotonic() - began
    assert status not in (0, 5)  # 1: the second one may come while Python itself ends
    print(f"Ctrl-C {interrupt.__name__}: ended after {took:.2f} s, gone {run.gone(tokens):.2f} s")
    if interrupt is once:
        assert status == 2
        assert "Interrupted: ended by SIGINT after " in run.text
        assert " passed" not in run.text
    assert list(run.tmpdir.iterdir()) == []
