"""Faults in the training step: is the first cause that a slower step is given the right one?

    python -m benchmarks.planted_causes                                  # of evidence that is kept
    python -m benchmarks.planted_causes --measure --out causes.json      # anew, on every GPU
    python -m benchmarks.planted_causes --measure --gpus 2 --out two.json
    python -m benchmarks.planted_causes --measure --device cpu --out cpu.json

Kept are counts and profiles of each fault and of the step as it is (data/planted_causes).
No pair was timed there: each pair is taken to differ by what the causes make up. FLOPs are taken to
be equal, since a run names other FLOPs first and no cause. The slower clock is no measurement: the
profile of the unchanged tree's second launch is scaled. Anew, each fault is judged as power.py does
it. The exit status is 1 where a first line does not name its fault.
"""

import argparse
import gzip
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import power
from benchmarks.changes import GRAPH_BREAK, PAGEABLE, SYNC
from benchmarks.shared import GPT, ROOT, WORKLOADS, Change
from stepguard.core.comparison import Comparison, Question
from stepguard.core.evidence import Block, Evidence, Launch, from_json
from stepguard.core.profile import Profile, mean
from stepguard.explain.causes import explain
from stepguard.judge.rule_book import judge
from stepguard.report.verdict_text import headline

KEPT = ROOT / "benchmarks" / "data" / "planted_causes"
PAIRS = 6
CLOCK_SLOWER = 1.25
_NOISE = 0.003  # log, between steps, of a kernel at one clock
_MLP = '        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))\n'
_FP32 = (
    "        with torch.autocast(x.device.type, enabled=False):\n"
    '            return self.c_proj(F.gelu(self.c_fc(x.float()), approximate="tanh"))\n'
)
_WIDE = "nn.Linear(config.n_embd, {} * config.n_embd"
_NARROW = "nn.Linear({} * config.n_embd, config.n_embd"
NOTHING, CLOCK = "nothing", "a slower clock"  # the second is made of what the first has measured
_SITE = re.compile(r"(model/[\w/]+\.py)(?::(\d+))?")
_PRODUCT = r"(nvjet|gemm|cutlass)\S*"


def _fault(path: str, old: str, new: str, named: str, needs_gpu: bool = False) -> Change:
    return Change(((path, old, new),), named=named, needs_gpu=needs_gpu)


# What the first line has to name; behind the last "|" of some, what it says of a run that compares
# FLOPs, or of a CPU, where counters alone are judged.
FAULTS: dict[str, Change] = {
    "math attention": _fault(
        GPT,
        '"default": None,  #',
        '"default": SDPBackend.MATH,  #',
        r"(forward|backward) \S+: \S*_safe_"
        r"|-\d+ aten\._scaled_dot_product",
    ),
    "fp32 products": _fault(
        GPT, _MLP, _FP32, rf"\S*(f32|tf32)\S* .*for {_PRODUCT}", needs_gpu=True
    ),
    "an unfused optimizer": _fault(
        WORKLOADS,
        "betas=(0.9, 0.95), fused=True)",
        "betas=(0.9, 0.95))",
        r"optimizer, aten::_foreach_mul_ \S+: BinaryOp",
        needs_gpu=True,
    ),
    "an extra clone per block": _fault(
        GPT,
        "_product_attention(query, key,",
        "_product_attention(query.clone(), key,",
        r"forward.*: \S*clone|\+\d+ aten\.clone",
    ),
    "a graph break": replace(GRAPH_BREAK, named=r"graph_breaks 0 -> [1-9].*:LINE", needs_gpu=True),
    "a sync": replace(SYNC, named=r"(host_syncs|sync_candidates)_per_step 0 -> [1-9].*:LINE"),
    "a pageable copy": replace(PAGEABLE, named=r"pageable_copies_per_step 0 -> ", needs_gpu=True),
    "another activation": _fault(
        GPT,
        'F.gelu(self.c_fc(x), approximate="tanh")',
        "F.mish(self.c_fc(x))",
        r": \S*mish\S* .*for |aten\.(gelu|mish)",
    ),
    "a changed GEMM shape": Change(
        tuple((GPT, one.format(4), one.format(5)) for one in (_WIDE, _NARROW)),
        named=rf"(forward|backward).*: {_PRODUCT}|flops_per_step",
        needs_gpu=True,
    ),
    "an unpadded vocabulary": _fault(
        "model/config.py",
        "vocab_size: int = 50304",
        "vocab_size: int = 50257",
        rf"(forward|backward).*: \S*(_log_s|softmax|nll|constant_pad|{_PRODUCT})|flops_per_step",
        needs_gpu=True,
    ),
}
OF_TWO_GPUS = {
    "small buckets": _fault(
        WORKLOADS,
        "DdpSettings(\n        bucket_cap_mb,",
        "DdpSettings(\n        1,",
        r"collectives_per_step|exposed communication",
    ),
}


def is_named(change: Change, first_line: str, lines: range) -> bool:
    """Tell whether a first line names the fault, in no other file, and by a planted line where its
    pattern asks for one.
    """
    site = _SITE.search(first_line)
    if site and site[1] != change.edits[-1][0]:
        return False
    text = first_line
    if site and site[2] and int(site[2]) in lines:
        text = first_line.replace(site[0], f"{site[1]}:LINE")
    return bool(re.search(change.named, text))


@dataclass(frozen=True)
class Judged:
    """The first line of a fault, and whether it is right."""

    name: str
    first_line: str
    right: bool


def evidence(name: str, folder: Path = KEPT) -> Evidence:
    """Return the kept evidence of a fault's tree."""
    file = folder / f"{name.replace(' ', '-')}.json.gz"
    return from_json(gzip.decompress(file.read_bytes()), str(file))


def first_line(base: Evidence, head: Evidence) -> str:
    """Return the first line of the verdict on pairs that differ by what the causes make up."""
    assert base.counts and head.counts and base.counts.profile and head.counts.profile
    found = explain(base.counts.profile, head.counts.profile)
    # Two counting passes do not take turns: that the second ran at a faster clock would hide a
    # fault.
    more_us = sum(one.us for one in found.causes if one.kind.name != "CLOCK" or one.us > 0)
    equal = {"flops_per_step": base.counts.values["flops_per_step"]}
    head = replace(head, counts=replace(head.counts, values=head.counts.values | equal))
    before_us = found.before_us
    sides = (_timed(head, before_us + more_us), _timed(base, before_us))
    return headline(judge(Question(pairs=Comparison("HEAD", *sides))))


def _timed(found: Evidence, step_us: float) -> Evidence:
    ranks, ms = int(found.case.get("world_size", 1)), step_us / 1e3
    blocks = (Block(1, (ms,) * ranks, (ms,) * ranks, (ms,)),) * 2
    launches = tuple(Launch(at + 1, blocks, 1.0, 1.0, 10, "", 10.0) for at in range(PAIRS))
    return replace(found, planned_launches=PAIRS, launches=launches)


def judged_kept(folder: Path = KEPT) -> Iterator[Judged]:
    """Judge every kept fault, and that nothing is named where nothing was planted."""
    planted = json.loads((folder / "index.json").read_text())
    base, again = evidence("base of 1", folder), evidence(NOTHING, folder)
    assert again.counts and again.counts.profile
    said = first_line(base, again)
    yield Judged(NOTHING, said, bool(re.search(": same: ", said)))
    counts = replace(again.counts, profile=slower_clock(again.counts.profile))
    said = first_line(base, replace(again, counts=counts))
    yield Judged(CLOCK, said, bool(re.search(": SLOWER: step_ms", said)))
    for name, change in (FAULTS | OF_TWO_GPUS).items():
        before = evidence("base of 2", folder) if name in OF_TWO_GPUS else base
        said = first_line(before, evidence(name, folder))
        yield Judged(name, said, is_named(change, said, range(*planted[name]["lines"])))


def slower_clock(base: Profile) -> Profile:
    """Return the profile as a clock slower by CLOCK_SLOWER would have made it. Each kernel takes
    longer as far as it follows the others from step to step, which is how a power cap moves them;
    those that move memory do not. Each step is longer by the sum.
    """
    logs = [[math.log(us / mean(row.us)) for us in row.us] for row in base.kernels]
    weights = [mean(row.us) for row in base.kernels]
    pace = [
        sum(weight * its[step] for weight, its in zip(weights, logs, strict=True)) / sum(weights)
        for step in range(base.steps)
    ]
    spread, more, kernels = sum(one * one for one in pace), [0.0] * base.steps, []
    for row, its in zip(base.kernels, logs, strict=True):
        both = sum(one * own for one, own in zip(pace, its, strict=True))
        follows = min(1.0, max(0.0, (both + _NOISE**2) / (spread + _NOISE**2)))
        longer = tuple(us * CLOCK_SLOWER**follows for us in row.us)
        more = [sum_ + new - old for sum_, new, old in zip(more, longer, row.us, strict=True)]
        kernels.append(replace(row, us=longer))
    changed = {
        name: tuple(us + its for us, its in zip(getattr(base.parts, name), more, strict=True))
        for name in ("step_us", "compute_us")
    }
    return replace(base, kernels=tuple(kernels), parts=replace(base.parts, **changed))


def plan_of(options: argparse.Namespace) -> power.Plan:
    """Return the faults of a measurement, for the devices that are asked for."""
    if options.gpus > 1:
        faults, case = OF_TWO_GPUS, f"ddp[124m-bf16-{options.gpus}-gpus]"
    else:
        faults, case = FAULTS, power.CASES[options.device]
    return power.Plan(
        faults, case, lambda one, found, lines: is_named(one, found.get("first_line", ""), lines)
    )


def main() -> int:
    """Judge what is kept, or measure anew; return the exit status."""
    parser = power.options_of(__doc__ or "")
    parser.add_argument("--measure", action="store_true", help="anew; without it no option counts")
    options = parser.parse_args()
    if options.measure:
        return power.judge(plan_of(options), options, parser)
    print("| planted | first line | right |\n|---|---|---|")
    found = list(judged_kept())
    for one in found:
        print(f"| {one.name} | {one.first_line} | {'yes' if one.right else 'NO'} |")
    return 0 if all(one.right for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
