"""Scripts in real launches: several ranks, processes and threads of their own, what they leave."""

import pytest
from leftovers import environment
from short_launches import BUSY_LIMIT_S, be_patient, launch_spec

from stepguard.core.case import Case, Loop
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.worker_group import WorkerGroup
from stepguard.machine.lifeline import pids_by_token

DDP = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
while True:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BUSY = """
import multiprocessing, signal, subprocess, sys, threading, time

import stepguard


def main():
    signal.signal(signal.SIGTERM, lambda *_: print("not yet"))
    threading.Thread(target=time.sleep, args=(3600,)).start()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        while True:
            assert pool.apply(double, (2,)) == 4
            stepguard.step()


def double(number):
    return 2 * number


if __name__ == "__main__":
    main()
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Launches that fork, however slow the machine is."""
    be_patient(monkeypatch)


def ask(group, command, limit_s=BUSY_LIMIT_S, **arguments):
    """A command's answers."""
    how = {"limit_s": limit_s, "poll": lambda: None, "progress": lambda text: None}
    return group.request(command, **how, **arguments)


def test_several_ranks_make_their_own_group(tmp_path):
    """A script's init_process_group() meets in the launch's store, with torchrun's variables; its
    exchange is counted on each rank.
    """
    (tmp_path / "train.py").write_text(DDP)
    case = Case("x", "train.py", device="cpu", world_size=2, launches=1)
    with WorkerGroup(launch_spec(tmp_path, world_size=2)) as group:
        group.hello()
        prepared = ask(group, "prepare", case=case.as_dict())
        assert [rank.tokens_per_step for rank in prepared] == [0, 0]
        ask(group, "first_step")
        counts = ask(group, "count")
    assert all(rank.counts.values["collectives_per_step"] >= 1 for rank in counts)


def test_one_rank_makes_its_own_group_where_that_is_asked_for(tmp_path):
    """A script that is only ever started by torchrun: it reads RANK, and exchanges with itself."""
    (tmp_path / "train.py").write_text("import os\nassert os.environ['RANK'] == '0'\n" + DDP)
    case = Case("x", "train.py", device="cpu", launches=1, loop=Loop(torchrun=True))
    with WorkerGroup(launch_spec(tmp_path)) as group:
        group.hello()
        ask(group, "prepare", case=case.as_dict())
        ask(group, "first_step")
        ask(group, "count")
        (reply,) = ask(group, "count_eager")
        group.leave()
    assert reply.counts.values["operator_calls_per_step"] > 0
    # gloo's threads free tensors, as on several ranks: what is counted is what is gated
    assert "leaked_bytes_per_step" not in {*reply.counts.values, *case.gates}
    assert {*case.gates} - {"step_ms"} <= reply.counts.values.keys()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_nothing_of_a_busy_script_is_left(tmp_path, start):
    """Its threads, processes, workers that import ``__main__`` again, and a handler of SIGTERM do
    not outlive the launch.
    """
    (tmp_path / "train.py").write_text(BUSY)
    case = Case("x", "train.py", device="cpu", launches=1, args=(start,))
    with WorkerGroup(launch_spec(tmp_path)) as group:
        group.hello()
        ask(group, "prepare", case=case.as_dict())
        ask(group, "first_step")
        running = pids_by_token(group.token)
        assert len(running) >= 4  # agent, rank, the child and the pool's worker
        group.leave()
    assert not [pid for pid in running if environment(pid).get("STEPGUARD_TOKEN") == group.token]


def test_a_script_whose_steps_are_not_seen_is_told_to_mark_them(tmp_path):
    """It trains on without an optimizer of torch, until the launch's time is up."""
    (tmp_path / "train.py").write_text("import time\nwhile True:\n  time.sleep(0.01)\n")
    case = Case("x", "train.py", device="cpu", launches=1)
    with WorkerGroup(launch_spec(tmp_path)) as group:
        group.hello()
        with pytest.raises(LaunchFailed) as failed:
            ask(group, "prepare", limit_s=2.0, case=case.as_dict())
    fault = failed.value.fault
    assert fault.code == "NO_ANSWER" and "a larger time_limit_s" in fault.message
    assert "mark the end of each step with stepguard.step(), or" in fault.message
    assert "--step-at module:function" in fault.message and "train.py" in fault.detail
