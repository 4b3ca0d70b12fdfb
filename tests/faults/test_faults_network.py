"""Sockets of a launch: none listens beyond loopback. Every process of a launch is looked at."""

import ipaddress
import os
from pathlib import Path

import pytest
from short_launches import BUSY_LIMIT_S, be_patient, launch_spec

from stepguard.core.case import Case
from stepguard.launch.worker_group import WorkerGroup
from stepguard.machine.lifeline import pids_by_token

TESTS = Path(__file__).resolve().parents[1]
LISTEN = "0A"  # the state of a listening socket in /proc/net/tcp


def listening(pid):
    """The addresses that a process listens on, IPv4 and IPv6."""
    inodes = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(handle)
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            bound = table.startswith("udp") or fields[3] == LISTEN
            if bound and fields[9] in inodes:
                yield address_of(fields[1].partition(":")[0])


def address_of(text):
    """The kernel writes an address as hexadecimal words in the machine's byte order."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(words))
    return getattr(found, "ipv4_mapped", None) or found


def test_addresses_are_read_as_the_kernel_writes_them():
    """Of both families; else everything would look like loopback, or nothing."""
    assert address_of("0100007F").is_loopback and address_of("00000000").is_unspecified
    assert address_of("00000000000000000000000001000000").is_loopback
    assert address_of("00000000000000000000000000000000").is_unspecified


@pytest.mark.parametrize(
    ("ranks", "factory", "params"),
    [(1, "linear", {}), (2, "pair", {"how": "raise", "at_step": 40})],
)
def test_a_launch_listens_on_loopback_alone(tmp_path, monkeypatch, ranks, factory, params):
    """From hello to a step in which the ranks exchange; what listens elsewhere lets strangers in.
    One rank listens nowhere.
    """
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    be_patient(monkeypatch)
    spec = launch_spec(tmp_path, preload=("factories",), world_size=ranks)
    seen = set()

    def look():
        for pid in pids_by_token(group.token):
            try:
                seen.update(listening(pid))
            except (FileNotFoundError, PermissionError):  # it has ended
                continue

    with WorkerGroup(spec) as group:
        group.hello(look)
        for command, arguments in (
            ("prepare", {"case": Case("x", f"factories:{factory}", params, "cpu").as_dict()}),
            ("first_step", {}),
        ):
            group.request(
                command, limit_s=BUSY_LIMIT_S, poll=look, progress=lambda text: None, **arguments
            )
            look()
    assert all(address.is_loopback for address in seen), seen
    assert bool(seen) is (ranks > 1)  # gloo's, or the test would have seen nothing at all
