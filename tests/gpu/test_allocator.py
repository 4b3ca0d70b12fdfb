"""The allocator's setting for steps that just fit into the memory."""

import pytest
import torch

from stepguard.worker.torch_device import growing_segments

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MIB = 1 << 20


def grows() -> bool:
    """Whether the allocator's segments grow."""
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return bool(settings["expandable_segments"])


def test_segments_grow_inside_the_block_only():
    """What two small tensors free serves a large one there, and nothing is kept of the setting."""
    assert not grows()
    with growing_segments():
        assert grows()
        before = torch.cuda.memory_reserved()
        for mib in (200, 300, 500):
            tensor = torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
            del tensor
        assert torch.cuda.memory_reserved() - before <= 500 * MIB
        with growing_segments():
            assert grows()
        assert grows()
    assert not grows()
    torch.cuda.empty_cache()
