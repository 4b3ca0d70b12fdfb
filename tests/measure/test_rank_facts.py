"""What ranks say of themselves: they must agree, and each must run on the GPU that is watched."""

import pytest

from stepguard.launch.diagnosis import LaunchFailed
from stepguard.measure.ranks import refuse_unlike_ranks


def rank(**changes):
    """What a rank says of itself."""
    known = {"device_name": "NVIDIA H200", "torch": "2.11.0", "nccl": "2.27", "environment": {}}
    return {"fingerprint": known | changes}


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"torch": "2.8.0"}, "rank 1 has torch 2.8.0"),
        ({"nccl": "2.26"}, "rank 1 has nccl 2.26"),
        ({"device_name": "NVIDIA H100"}, "rank 1 has device_name NVIDIA H100"),
        ({"environment": {"TORCH_COMPILE_X": "1"}}, "steering variables"),
    ],
)
def test_a_rank_on_other_software_stops_the_launch(odd, words):
    """torch itself says what it is; how a node names its network is its own affair."""
    refuse_unlike_ranks([rank(), rank(environment={"NCCL_SOCKET_IFNAME": "eth1"})])
    with pytest.raises(LaunchFailed) as raised:
        refuse_unlike_ranks([rank(), rank(**odd)])
    assert raised.value.fault.code == "RANKS_DIFFER" and words in raised.value.fault.message
