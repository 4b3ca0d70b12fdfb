"""The counting pass on a GPU, against programs whose counts are known. Skipped without a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from whole_pass import count

from stepguard import allow_sync
from stepguard.worker.counters.operators import OperatorCounter
from stepguard.worker.counters.tally import RankStep
from stepguard.worker.rank_position import Phases

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
KIB = 1 << 10


class Program:
    """A step made of one body, run ``k`` times in the phase "forward"."""

    def __init__(self, body: Callable[[], object], k: int) -> None:
        self.phases = Phases()
        self._body, self._k = body, k

    def step(self) -> None:
        """One step."""
        self.phases("forward")
        for _ in range(self._k):
            self._body()

    def counted(self) -> dict[str, Any]:
        """What the counting pass says."""
        self.step()
        counted = RankStep(self.step, torch.device("cuda", 0), self.phases)
        return count(counted)


def counts(body: Callable[[], object], k: int = 3) -> dict[str, int]:
    """The values alone; nothing may be unstable."""
    told = Program(body, k).counted()
    assert not told["unstable"]
    return dict(told["values"])


@pytest.mark.parametrize("k", [1, 7])
def test_kernels(k: int):
    """k in-place additions are k launches, and neither a copy nor a sync."""
    x = torch.zeros(KIB, device="cuda")
    found = counts(lambda: x.add_(1), k)
    assert found["launches_per_step"] == k
    assert found["operator_calls_per_step"] == k
    assert found["copies_per_step"] == found["host_syncs_per_step"] == 0


def test_operators_of_a_backward_pass_have_the_line_that_starts_it():
    """A thread of autograd's runs them, which has no Python frame of its own."""
    weight = torch.ones(8, 8, device="cuda", requires_grad=True)
    with OperatorCounter() as counter:
        (weight @ weight).sum().backward()
    products = [site for site in counter.sites() if site.what == "aten.mm.default"]
    assert {site.phase: site.count for site in products} == {"": 1, "backward": 2}
    assert {site.text for site in products} == {"(weight @ weight).sum().backward()"}


def test_graph_launches():
    """A captured graph of many kernels is one launch a replay."""
    x = torch.zeros(KIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            x.add_(1)
    assert counts(graph.replay, 4)["launches_per_step"] == 4


@pytest.mark.parametrize(
    ("pinned", "non_blocking", "syncs", "pageable"),
    [(True, True, 0, 0), (True, False, 1, 0), (False, False, 1, 1), (False, True, 0, 1)],
)
def test_copies_to_the_gpu(pinned: bool, non_blocking: bool, syncs: int, pageable: int):
    """k copies of n bytes are k copies and k * n bytes; only a blocking one makes the host wait."""
    host = torch.zeros(64 * KIB, dtype=torch.uint8, pin_memory=pinned)
    found = counts(lambda: host.to("cuda", non_blocking=non_blocking), 5)
    assert found["copies_per_step"] == 5
    assert found["copied_bytes_per_step"] == 5 * 64 * KIB
    assert found["host_syncs_per_step"] == 5 * syncs
    assert found["pageable_copies_per_step"] == 5 * pageable


def test_copies_within_the_gpu():
    """k clones of n bytes are k copies and k * n bytes, and no sync."""
    x = torch.zeros(16 * KIB, dtype=torch.uint8, device="cuda")
    found = counts(x.clone, 2)
    assert (found["copies_per_step"], found["copied_bytes_per_step"]) == (2, 2 * 16 * KIB)
    assert found["host_syncs_per_step"] == 0


def test_memsets():
    """k fills through the driver are k memsets."""
    x = torch.zeros(KIB, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    body = lambda: torch.cuda.cudart().cudaMemset(x.data_ptr(), 0, 4)  # noqa: E731
    if not hasattr(torch.cuda.cudart(), "cudaMemset"):
        pytest.skip(f"torch does not offer cudaMemset on stream {stream}")
    assert counts(body, 3)["memsets_per_step"] == 3


def _event_sync() -> None:
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


@pytest.mark.parametrize(("body", "what", "text"), [
    (lambda: torch.ones(4, device="cuda").sum().item(), ".item()", ".sum().item()"),
    (lambda: torch.ones(4, device="cuda").cpu(), "copy to the host", ".cpu()"),
    (lambda: torch.cuda.synchronize(), "torch.cuda.synchronize()", "synchronize()"),
    (_event_sync, "Event.synchronize()", "event.synchronize()"),
    (lambda: torch.ones(4, device="cuda").nonzero(), "nonzero", ".nonzero()"),
    (lambda: bool(torch.ones((), device="cuda")), "truth of a tensor", "bool("),
])  # fmt: skip
def test_syncs(body: Callable[[], object], what: str, text: str):
    """k syncs are k host syncs at one site, with its line's text, its phase and what it is."""
    told = Program(body, 3).counted()
    assert told["values"]["host_syncs_per_step"] == 3
    (site,) = told["sites"]["host_syncs_per_step"]
    assert site["what"] == what and text in site["text"]
    assert site["file"] == "tests/gpu/test_known_counts.py"
    assert (site["count"], site["phase"]) == (3, "forward")


def test_allowed_syncs_do_not_count():
    """A sync inside allow_sync is listed with its reason, and the count stays zero."""

    def body() -> None:
        with allow_sync("known to the test"):
            torch.cuda.synchronize()

    told = Program(body, 2).counted()
    assert told["values"]["host_syncs_per_step"] == 0
    (site,) = told["sites"]["host_syncs_per_step"]
    assert (site["allowed"], site["count"]) == ("known to the test", 2)


def test_device_allocations():
    """Memory that is given back to the driver in every step is taken anew in every step."""

    def body() -> None:
        x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        del x
        torch.cuda.empty_cache()

    found = counts(body, 1)
    assert found["device_allocations_per_step"] == 2  # a cudaMalloc and a cudaFree


def test_peak_and_leak():
    """The peak is what tensors ask for, to the byte; what a step keeps is a leak, to the byte, with
    the line that made it.
    """
    kept: list[torch.Tensor] = []

    def body() -> None:
        torch.empty(3_000_001, dtype=torch.uint8, device="cuda")
        kept.append(torch.empty(5_003, dtype=torch.uint8, device="cuda"))

    told = Program(body, 1).counted()
    assert told["values"]["leaked_bytes_per_step"] == 5_003
    (site,) = told["sites"]["leaked_bytes_per_step"]
    assert (site["count"], site["phase"]) == (5_003, "forward")
    assert site["text"].startswith("kept.append(")
    x = torch.empty(1_000, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    program = Program(lambda: torch.empty(3_000_001, dtype=torch.uint8, device="cuda"), 1)
    clean = program.counted()
    assert clean["values"]["peak_allocated_bytes"] == before + 3_000_001
    assert clean["values"]["leaked_bytes_per_step"] == 0
    assert clean["information"]["peak_reserved_bytes"] >= 3_000_001
    del x


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_step_keeps(compiled: bool):
    """What lives between steps is what did before and what each step replaces, to the byte; of an
    eager step with the line that made it. A step that keeps nothing has the former alone.
    """
    x = torch.ones(5_003, dtype=torch.uint8, device="cuda")
    double = torch.compile(lambda x: x * 2) if compiled else lambda x: x * 2
    module: dict[str, torch.Tensor] = {}

    def keep() -> None:
        module["logits"] = double(x)

    keep()
    module.clear()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    nothing = Program(lambda: double(x), 3).counted()
    assert nothing["values"]["allocated_bytes_between_steps"] == before
    assert "allocated_bytes_between_steps" not in nothing["sites"]
    kept = Program(keep, 3).counted()
    assert kept["values"]["allocated_bytes_between_steps"] == before + 5_003
    assert kept["values"]["leaked_bytes_per_step"] == 0
    (site,) = kept["sites"]["allocated_bytes_between_steps"]
    assert (site["count"], site["phase"]) == (5_003, "forward")
    assert "x * 2" in site["text"]


def ran() -> list[CachingAutotuner]:
    """The compiler's records of the kernels that ran."""
    values = [value for module in PyCodeCache.modules for value in vars(module).values()]
    tuners = {id(value): value for value in values if isinstance(value, CachingAutotuner)}
    return [tuner for tuner in tuners.values() if tuner.launchers]


def test_machine_code_of_generated_kernels(monkeypatch: pytest.MonkeyPatch):
    """fp64 is counted in the kernel that converts to it, with the line, and not in another one.
    Registers, spills and shared memory are those that the driver says, and every launch of a
    generated kernel has its machine code in the profile.
    """
    monkeypatch.setattr(PyCodeCache, "modules", [])  # what other tests compiled
    x = torch.ones(KIB, 64, device="cuda")
    single = torch.compile(lambda x: x.softmax(1) * 2)
    # Not a bare product: rounded back to fp32, one in fp64 is the same as one in fp32.
    double = torch.compile(lambda x: (x.double() * 0.1 + x.double()).float())
    plain = Program(lambda: single(x), 2).counted()
    assert plain["values"]["fp64_kernels"] == plain["values"]["spill_bytes"] == 0
    both = Program(lambda: (single(x), double(x)), 2).counted()
    assert not both["unstable"] and both["values"]["fp64_kernels"] == 1
    ((kernel, instructions),) = both["detail"]["fp64_kernels"].items()
    (site,) = both["sites"]["fp64_kernels"]
    assert "double()" in site["text"] and site["file"] == "tests/gpu/test_known_counts.py"
    rows = {row["name"]: row for row in both["profile"]["kernels"] if row["code"]}
    codes = {name: row["machine_code"] for name, row in rows.items()}
    assert codes[kernel]["fp64"] == instructions > 0 and None not in codes.values()
    tuners = ran()
    assert {tuner.fn.__name__ for tuner in tuners} == codes.keys()
    for tuner in tuners:
        (launcher,), code = tuner.launchers, codes[tuner.fn.__name__]
        said = launcher.n_regs, 4 * launcher.n_spills, launcher.shared
        assert (code["registers"], code["spill_bytes"], code["shared_bytes"]) == said


def test_spills_of_a_generated_kernel(monkeypatch: pytest.MonkeyPatch):
    """A sort of long rows within one kernel keeps more than its threads have registers for. Where
    it does not, on another compiler, nothing is counted.
    """
    monkeypatch.setattr(PyCodeCache, "modules", [])
    x = torch.rand(64, 512, device="cuda")
    order = torch.compile(lambda x: torch.sort(x, dim=1).values)
    told = Program(lambda: order(x), 1).counted()
    tuners = ran()
    spilled = sum(4 * tuner.launchers[0].n_spills for tuner in tuners)
    assert told["values"]["spill_bytes"] == spilled
