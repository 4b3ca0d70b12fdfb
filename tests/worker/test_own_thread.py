"""Steps that hand their work to another thread are refused; those that only get help are not."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from stepguard.worker.counters.profiled_steps import refuse_work_elsewhere
from stepguard.worker.counters.tally import RankStep
from stepguard.worker.workload import BadWorkload

CPU = torch.device("cpu")


@pytest.fixture
def pool():
    """A thread of its own."""
    with ThreadPoolExecutor(1) as threads:
        yield threads


def train(model):
    """A forward and a backward pass; returns its loss."""
    loss = model(torch.ones(2, 8)).sum()
    loss.backward()
    return loss.detach()


def refuse(step):
    """Check a step as the counting pass does."""
    step()
    refuse_work_elsewhere(RankStep(step, CPU))


def test_a_step_in_another_thread_is_refused(pool):
    """It calls nothing in its own thread, so that every counter would be zero."""
    model = torch.nn.Linear(8, 8)
    with pytest.raises(BadWorkload, match="calls no operator of torch's in its own thread"):
        refuse(lambda: pool.submit(train, model).result())


def test_a_step_that_only_reads_the_loss_is_refused(pool):
    """Its own thread has an operator; the products are elsewhere: forward, and of the weight."""
    model = torch.nn.Linear(8, 8)
    with pytest.raises(BadWorkload, match="in another thread, and no counter sees other threads"):
        refuse(lambda: pool.submit(train, model).result().item())


def test_half_of_a_step_in_another_thread_is_refused(pool):
    """One of two micro-steps."""
    model = torch.nn.Linear(8, 8)

    def step():
        other = pool.submit(train, model)
        train(model)
        other.result()

    with pytest.raises(BadWorkload, match=r"calls \d+ of \d+ products in another thread"):
        refuse(step)


def test_a_step_without_operators_is_refused():
    """Whatever it does is in no counter."""
    with pytest.raises(BadWorkload, match="takes time, but calls no operator"):
        refuse(lambda: sum(range(1000)))


def test_a_thread_that_prepares_batches_is_no_step(pool):
    """Loaders stack, cast and copy."""
    model = torch.nn.Linear(8, 8)

    def load():
        return torch.stack([torch.arange(8).to(torch.float32) for _ in range(20)])

    def step():
        following = pool.submit(load)
        train(model)
        following.result()

    refuse(step)


def test_a_compiled_step_is_in_its_own_thread():
    """The compiler's regions, forward and backward."""
    model = torch.compile(torch.nn.Linear(8, 8), backend="aot_eager")
    refuse(lambda: train(model))
