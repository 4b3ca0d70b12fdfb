"""Waiting for other threads of a process: some work, some sleep and some never rest."""

import threading
import time

import pytest

from stepguard.worker.quiet import wait_for_quiet


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
