"""Throttle reasons of a GPU that spoil a block, by the driver's bits. Pure."""

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons (nvml.h). The software power cap, 0x4, does not
# count as a slowdown: a big GPU runs at its cap all the time, also in the recordings.
SLOWDOWN_BITS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}


def slowdown(bits: int) -> str:
    """Return the slowdowns among the driver's throttle reasons, in words; empty if there are
    none.
    """
    return ", ".join(text for bit, text in SLOWDOWN_BITS.items() if bits & bit)
