"""Both parts of the counting pass, in this process."""

import msgspec

from stepguard.worker.counters.counting import count_compiled, count_without_compiler
from stepguard.worker.counters.syncs import locate_syncs
from stepguard.worker.torch_device import on_gpu


def count(counted):
    """What a rank says of a step after both parts, in the fields of Counts."""
    tally = count_compiled(counted, lambda text: None)
    if on_gpu(counted.device):
        locate_syncs(tally, counted, tally.calls)
    count_without_compiler(counted, lambda text: None, tally)
    return msgspec.to_builtins(tally.counts())
