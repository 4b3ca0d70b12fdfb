"""Blocks and segments during which the machine was disturbed: measured again, never kept."""

from dataclasses import replace
from functools import partial
from math import nan
from types import SimpleNamespace

import pytest
from msgspec import structs

from stepguard import Case
from stepguard.core.evidence import Counts, Disturbance
from stepguard.core.reasons import Reason
from stepguard.core.replies import Counted, FirstStep, TimedBlock, TimedSegments
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.measure.case_workers import CaseWorkers
from stepguard.measure.driver import measure_difference
from stepguard.measure.running_launch import RunningLaunch
from stepguard.measure.warm_up import PROTOCOLS, protocol_of

GPU = PROTOCOLS["cuda"]


def answers(command, *, steps, order=(), **rest):
    """A rank whose steps take 100 ms, and 101 ms synced."""
    times = {"began_ns": 1, "ended_ns": 2}
    if command == "alternate":
        segments = [100.0 + variant for variant in order]
        return [TimedSegments(**times, segments_ms=segments, outside_ms=sum(segments) * steps)]
    same = dict.fromkeys(("wall_ms", "events_ms", "outside_ms"), 100.0 * steps)
    return [TimedBlock(**times, **same, step_ms=[100.0] * steps, enqueue_ms=1.0, compiled_graphs=3)]


STRANGER = Disturbance(Reason.FOREIGN_PROCESS, "process 4711 on the GPU")


class Machine:
    """Disturbed for the first so many questions, and asked how often."""

    def __init__(self, disturbed, how=STRANGER):
        self.disturbed, self.how, self.asked = disturbed, how, 0

    def annotate(self, block, ranks):
        assert [(rank.began_ns, rank.ended_ns) for rank in ranks] == [(1, 2)]
        self.asked += 1
        return replace(block, disturbance=self.how if self.asked <= self.disturbed else None)


class Group:
    """A worker group's stand-in, whose only rank answers at once."""

    def __init__(self, answer):
        self.request = lambda command, *, limit_s, poll, progress, **rest: answer(command, **rest)


def running(machine=None, answer=answers):
    """A launch that has warmed up on a machine; ``shown`` is its progress."""
    shown = []
    workers = SimpleNamespace(
        progress=shown.append,
        poll=lambda: None,
        monitored=machine.annotate if machine else lambda block, ranks: block,
        start=lambda label, **options: Group(answer),
    )
    launch = RunningLaunch(workers, "launch 2", GPU)
    launch.warmup.step_s = 0.1
    launch.shown = shown
    return launch


def time_blocks(launch):
    """As many blocks of 20 steps as the protocol wants."""
    for _ in range(GPU.blocks):
        launch.timed_block(20, of=GPU.blocks)
    return launch.measured(2)


def test_a_disturbed_block_is_discarded_and_kept_for_the_record():
    """As many blocks as planned, and the disturbed one beside them."""
    machine = Machine(1)
    launch = running(machine)
    found = time_blocks(launch)
    assert (len(found.blocks), len(found.discarded)) == (GPU.blocks, 1)
    assert machine.asked == GPU.blocks + 1
    assert not any(block.disturbance for block in found.blocks)
    assert launch.shown[-1] == f"launch 2: block {GPU.blocks} of {GPU.blocks}"
    assert [block.ran for block in found.blocks] == [20, 40, 60]


def test_a_disturbed_series_is_measured_again():
    """The pairs of a difference are those of an undisturbed series alone."""
    machine = Machine(1)
    found = measure_difference(running(machine), 6)
    assert found.pairs_ms == ((100.0, 101.0),) * 6
    assert machine.asked == 2


@pytest.mark.parametrize("disturbed", [0, 1])
def test_a_graph_that_is_compiled_in_a_timed_block_is_said(disturbed):
    """Its seconds are no step's, and nothing else names them; not those of a block that was
    measured again.
    """
    graphs = iter((3, 4, 4, 4, 4))  # in the warm-up, then in the first block

    def answer(command, **rest):
        compiled = {"compiled_graphs": next(graphs), "compiled_afresh": True}
        return [structs.replace(rank, **compiled) for rank in answers(command, **rest)]

    launch = running(Machine(disturbed), answer)
    launch.run(20)
    assert launch.compiled_afresh  # in the warm-up; pairs want to know
    said = "something was compiled in block 1, at one of the steps 20 to 39"
    assert time_blocks(launch).steady == ("" if disturbed else said)


@pytest.mark.parametrize("order", [1, -1])
def test_what_one_rank_compiled_and_reserved_is_the_launchs(order):
    """Whichever rank it is."""
    names = ("compile_s", "compiled_afresh", "missed_graphs", "reserved_bytes")
    idle = FirstStep(**dict(zip(names, (2.0, False, 0, 3), strict=True)))
    busy = FirstStep(**dict(zip(names, (9.0, True, 1, 5), strict=True)))
    launch = running(answer=lambda command, **rest: [idle, busy][::order])
    launch.first_step(quietly=True)
    assert launch.compiled_afresh and launch.missed_graphs == 1
    assert launch.measured(1).compile_s == 9.0 and launch.workers.first_reserved_bytes == 5


@pytest.mark.parametrize(("afresh", "shown"), [(True, {"cold_compile_s": 24.0}), (False, {})])
def test_a_first_step_that_no_cache_helped_is_shown_beside_the_counts(afresh, shown):
    """That of the launch that counts. A launch with a warm cache has no cold first step."""
    first = FirstStep(compile_s=24.0, compiled_afresh=afresh, missed_graphs=0, reserved_bytes=0)
    said = {"prepare": None, "first_step": first, "sources": None}
    said |= dict.fromkeys(("count", "count_eager"), Counted(counts=Counts({})))
    launch = running(answer=lambda command, **rest: [said[command]])
    workers, launch.group.spec = launch.workers, None
    workers.case, workers.take_description = Case("c", "module:factory"), lambda ranks, spec: None
    workers.check_sources = lambda ranks, spec, during: None
    workers.take_counts = partial(CaseWorkers.take_counts, workers)
    launch.build()
    launch.count()
    assert workers.counts.information == shown


class Stalls:
    """The host stalls for 12 ms as these blocks end, counted from the first."""

    def __init__(self, *which):
        self.which, self.asked = which, 0

    def __call__(self, command, **arguments):
        self.asked += 1
        ranks = answers(command, **arguments)
        late = 12.0 * (self.asked in self.which)
        return [structs.replace(rank, wall_ms=rank.wall_ms + late) for rank in ranks]


def test_a_block_whose_clocks_disagree_once_is_measured_again():
    """A single stall of the host costs a block, not the case; the evidence has what it was."""
    stalls = Stalls(2)
    found = time_blocks(running(answer=stalls))
    assert stalls.asked == GPU.blocks + 1 == len(found.blocks) + 1
    (text,) = (block.disturbance.text for block in found.discarded)
    assert text == "rank 0: wall clock 2012.000 ms, events 2000.000 ms"
    assert not any(block.clock_gap() for block in found.blocks)


@pytest.mark.parametrize("which", [(1, 2), (1, GPU.blocks + 1)])
def test_clocks_that_disagree_twice_in_a_launch_are_a_fault(which):
    """Work that the events do not see is no stall: the second such block ends the launch."""
    stalls = Stalls(*which)
    with pytest.raises(LaunchFailed) as raised:
        time_blocks(running(answer=stalls))
    fault = raised.value.fault
    assert stalls.asked == which[1]
    assert (fault.code, fault.during) == ("CLOCKS_DISAGREE", "launch 2, block")
    assert fault.message.startswith("2 blocks could not be used: rank 0: wall clock 2012.000 ms")


def fault_of(launch, measured):
    """The fault in which measuring a "block" or the "sync overhead" ends."""
    with pytest.raises(LaunchFailed) as raised:
        if measured == "block":
            time_blocks(launch)
        else:
            measure_difference(launch, 6)
    return raised.value.fault


@pytest.mark.parametrize("times", [2.8, nan], ids=["longer", "unknown"])
@pytest.mark.parametrize("measured", ["block", "sync overhead"])
def test_a_rank_whose_clock_is_not_the_hosts_is_a_fault(measured, times):
    """Ranks that say 100 ms a step while the host waits 280 ms, or that do not say when they begin:
    nothing is measured.
    """

    def bent(command, **arguments):
        ranks = answers(command, **arguments)
        return [structs.replace(rank, outside_ms=times * rank.outside_ms) for rank in ranks]

    launch = running(answer=bent)
    fault = fault_of(launch, measured)
    assert (fault.code, fault.during) == ("CLOCKS_DISAGREE", f"launch 2, {measured}")
    if measured == "block" and times == 2.8:
        assert fault.message.endswith("the ranks' clock 2000.000 ms, the host's 5600.000 ms")


@pytest.mark.parametrize("how", [
    STRANGER,
    Disturbance(Reason.MACHINE_UNREADABLE, "no telemetry during the block"),
    Disturbance(Reason.THROTTLED, "hw thermal slowdown"),
], ids=lambda how: how.reason)  # fmt: skip
@pytest.mark.parametrize("measured", ["block", "sync overhead"])
def test_a_machine_that_stays_disturbed_is_a_fault(how, measured):
    """After the retries neither gives a figure, and the fault says what disturbed it, how often."""
    launch = running(Machine(10**6, how))
    fault = fault_of(launch, measured)
    assert (fault.code, fault.during) == (how.reason, f"launch 2, {measured}")
    assert fault.message == f"{GPU.retries + 1} blocks could not be used: {how.text}"


@pytest.mark.parametrize(("device", "gates", "short"), [
    ("cpu", (), True),
    ("cpu", ("graph_breaks", "step_ms"), False),
    ("cuda", (), False),
    ("cuda", ("graph_breaks",), True),
    ("cuda", ("graph_breaks", "sync_overhead_pct"), False),
])  # fmt: skip
def test_only_times_that_decide_nothing_are_measured_briefly(device, gates, short):
    """Without a gated time or difference: three blocks all the same, each shorter, and no long wait
    for a steadiness that nobody asks for.
    """
    case = Case("a", "m:f", {}, device, gates=gates)
    found, usual = protocol_of(case), PROTOCOLS[device]
    assert (found != usual) == short and found.blocks == usual.blocks
    assert found.block_s <= usual.block_s and found.warmup_cap_s <= usual.warmup_cap_s


def test_the_slowest_host_of_all_ranks_counts():
    """It may be another one than the slowest rank's, which ranks in lockstep leave to chance."""

    def ranks(command, **rest):
        [one] = answers(command, **rest)
        slower = structs.replace(one, wall_ms=one.wall_ms + 1, events_ms=one.events_ms + 1)
        return [slower, structs.replace(one, enqueue_ms=90.0)]

    launch = running(answer=ranks)
    launch.timed_block(20, of=1)
    assert launch.blocks[0].enqueue_ms == 90.0
