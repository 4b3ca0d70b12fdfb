"""Waiting for other threads of a process: some work, some sleep and some never rest."""

import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist

from stepguard.worker.count.quiet import exchanged_held, wait_for_quiet


@pytest.fixture
def beside():
    """Runs a function beside the test, in a thread that is over when the test is."""
    threads, stop = [], threading.Event()

    def start(work):
        threads.append(threading.Thread(target=work, args=(stop,)))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def test_work_of_another_thread_is_over_afterwards(beside):
    """Quiet comes after the last thing that a busy thread does."""
    done, began = [], threading.Event()

    def work(stop):
        began.set()
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            pass
        done.append(True)

    beside(work)
    began.wait()
    assert wait_for_quiet(60)
    assert done


def test_a_thread_that_sleeps_is_quiet(beside):
    """Whoever waits for something is not waited for."""
    beside(lambda stop: stop.wait())
    assert wait_for_quiet(60)


def test_a_thread_that_never_rests_does_not_stop_the_count(beside):
    """After the limit the answer is no."""

    def spin(stop):
        while not stop.is_set():
            pass

    beside(spin)
    assert not wait_for_quiet(0.2)


@pytest.fixture
def alone_in_a_group():
    """A gloo group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


EXCHANGES = {
    "all_reduce": lambda x: dist.all_reduce(x),
    "broadcast": lambda x: dist.broadcast(x, 0),
    "all_gather": lambda x: dist.all_gather([torch.empty_like(x)], x),
    "all_gather_into_tensor": lambda x: dist.all_gather_into_tensor(torch.empty_like(x), x),
    "reduce": lambda x: dist.reduce(x, 0),
    "gather": lambda x: dist.gather(x, [torch.empty_like(x)]),
    "later": lambda x: dist.all_reduce(x, async_op=True).wait(),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_what_is_exchanged_lives_until_the_end(alone_in_a_group, name):
    """The thread that asked frees it: it lives to the end of the block, and no longer."""
    with exchanged_held():
        tensor = torch.ones(4)
        gone = weakref.ref(tensor)
        EXCHANGES[name](tensor)
        del tensor
        wait_for_quiet(60)
        assert gone() is not None
    assert gone() is None


def test_afterwards_nothing_is_held(alone_in_a_group):
    """The group's methods are its own again, also after an error."""
    plain = dist.ProcessGroup.allreduce
    with pytest.raises(ValueError, match="planted"), exchanged_held():
        assert dist.ProcessGroup.allreduce is not plain
        raise ValueError("planted")
    assert dist.ProcessGroup.allreduce == plain
    for exchange in EXCHANGES.values():
        exchange(torch.ones(4))


def test_without_a_group_there_is_nothing_to_hold():
    """One rank exchanges nothing."""
    plain = dist.ProcessGroup.allreduce
    with exchanged_held():
        assert dist.ProcessGroup.allreduce == plain
