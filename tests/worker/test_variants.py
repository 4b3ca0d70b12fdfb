"""Steps without gradient sync, in a group of one rank: what would still exchange is refused."""

import factories
import pytest
import torch.distributed as dist

from stepguard.worker.step_variants import VARIANTS


@pytest.fixture(scope="module", autouse=True)
def one_rank(tmp_path_factory):
    """A process group of this process alone; DDP and collectives work as with more."""
    rendezvous = f"file://{tmp_path_factory.mktemp('group') / 'rendezvous'}"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RANK", "0")
        dist.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
        yield
        dist.destroy_process_group()


def without_sync(workload):
    """Return the workload's step without gradient sync."""
    return VARIANTS["no_gradient_sync"](workload, lambda: None)


def test_a_workload_that_cannot_do_without_exchange_is_refused():
    """The attribute that it lacks is named, instead of a difference of nothing."""
    pair = factories.pair(how="never", at_step=-1, device="cpu")
    with pytest.raises(ValueError, match="^Pair has no attribute gradient_sync that is True"):
        without_sync(pair)


def test_a_workload_that_exchanges_all_the_same_is_refused():
    """An attribute that nothing reads would measure no difference: a gain, and a green one."""
    message = "still calls c10d::allreduce_: it would be compared with itself"
    with pytest.raises(ValueError, match=message):
        without_sync(factories.deaf(device="cpu"))
