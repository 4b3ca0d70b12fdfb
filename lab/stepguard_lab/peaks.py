"""The command peaks: measure the most that this card, or else the CPU, can do, for rooflines.

python -m stepguard peaks
"""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from stepguard.cli.common import say
from stepguard.cli.doctor import last_line
from stepguard.launch import torchrun
from stepguard_lab import measured_peaks

_MEASURE = "stepguard_lab.profilers.measure_peaks"


def add_command(commands: Any, root: Path) -> None:
    text = "measure this card's peaks, by a copy and matrix products, for rooflines"
    command = commands.add_parser("peaks", help=text)
    command.set_defaults(call=_peaks, root=root)


def _peaks(options: argparse.Namespace) -> int:
    """Measure and keep the peaks of this machine's first GPU, or of its CPU."""
    failure = "the peaks cannot be measured"
    line = last_line(torchrun.command(_MEASURE), failure, options.root)
    peaks = msgspec.json.decode(line, type=measured_peaks.Peaks)
    rates = ", ".join(f"{kind} {rate / 1e12:.4g}" for kind, rate in peaks.flops_per_s.items())
    copied = f"copy {peaks.copy_bytes_per_s / 1e9:.4g} GB/s read and written"
    card = f"{peaks.device_name} {peaks.device_uuid}".rstrip()  # a CPU has no UUID
    say(f"{card}: {copied}; products, TFLOP/s: {rates}")
    say(f"kept in {measured_peaks.save(peaks)}")
    return 0
