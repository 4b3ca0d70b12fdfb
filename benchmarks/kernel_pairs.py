"""Record what kernels against kernels could see: profiled steps of base and head, taken in turns.

    python -m benchmarks.kernel_pairs --seconds 250 --out kernels.json      # every GPU, each alone
    python -m benchmarks.kernel_pairs --device cpu --seconds 60 --out cpu.json
    python -m benchmarks.kernel_rates kernels.json                          # judges; needs no GPU

A pair is one launch of each of two clones of this repository, both alive on the same GPU. Its
unprofiled blocks run as in a pair of the gate. Then come profiled turns. In a turn one launch runs
a few untimed steps, and is profiled once. The turns' order is base, head, head, base, or the other
way round. For each step and kernel the file has how often it was launched, and its time. The head
is the base itself (``none``), or has a kernel that takes longer. All GPUs work at the same time,
each on pairs of its own. With CUDA_VISIBLE_DEVICES and --only a GPU can keep to one change.

A pair begins only if it can end within --seconds. On a CPU there are no kernels: the run only shows
that the benchmark works. The exit status is 1 if no pair was recorded.
"""

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.longer_kernels import AS_IT_IS, BASES, LONGER, LONGER_GELU
from benchmarks.shared import ROOT, Change, Document, about, clone_head
from perf_tests.parameters import NANO_STEP, SEED_STEP
from stepguard.core.case import Case
from stepguard.core.profile import KernelRow
from stepguard.launch.loaded_sources import changed_modules
from stepguard.machine.git.revision import current
from stepguard.machine.gpu import visible_gpus
from stepguard.measure import turns
from stepguard.measure.case_workers import Bench, CaseWorkers, Ticker, watch
from stepguard.measure.driver import NAMES
from stepguard.measure.plan import BASE, HEAD, ORDERS
from stepguard.measure.running_launch import RunningLaunch, WorkersFailed, block_steps
from stepguard.measure.warm_up import PAIR_PROTOCOLS

NOTHING = "none"
# Nothing is planted: both sides are the base of a longer kernel.
ALIKE = {
    NOTHING if base == AS_IT_IS else f"{NOTHING} in {base}": Change(edits, base_edits=edits)
    for base, edits in BASES.items()
}
CHANGES: dict[str, Change] = ALIKE | LONGER
USUAL = (NOTHING, *LONGER_GELU)
CASES = {
    "cuda": Case("124m-bf16", "model.workloads:train_step", SEED_STEP),
    "cpu": Case("nano-cpu", "model.workloads:train_step", NANO_STEP, device="cpu", launches=1),
}
ROUNDS = 1  # of four profiled turns in a pair; a round profiles each launch twice
# The gate's blocks take twice as long. More launches tell more than longer ones.
BLOCK_S = 1.0
PAIR_S = 45.0  # expected of a pair, until one that compiled nothing was measured
MOST_PAIRS = 100  # of a card
LEFT_S = 4.0  # a pair may take so much longer than the one before it
OVERTIME_S = 20.0  # after --seconds; a process that still runs then is ended
# Fields of a profile's row that say which kernel it is. The others are figures of the turn, or are
# not needed for matching.
IDENTITY = ("name", "canonical", "kind", "phase", "grid", "block", "operator", "code", "work")


@dataclass(frozen=True)
class Trees:
    """The clones: for each change a head, and its base."""

    bases: dict[str, Path]
    heads: dict[str, Path]
    cache: Path

    @staticmethod
    def of(folder: Path, cache: Path, changes: Sequence[str]) -> "Trees":
        """Return the clones in ``folder``, whether they are made or not."""
        heads = {name: folder / "trees" / name.replace(" ", "-") for name in changes}
        bases = {
            name: folder / "trees" / f"base {base_of(name)}".replace(" ", "-") for name in changes
        }
        return Trees(bases, heads, cache)

    def make(self) -> None:
        """Clone HEAD as often as is needed, and plant the changes."""
        for name, base in self.bases.items():
            if not base.exists():
                CHANGES[name].plant_base(clone_head(base))
            CHANGES[name].plant(clone_head(self.heads[name]))


class Card:
    """Pairs that one GPU measures, one after the other. On a CPU there is one card, too."""

    def __init__(self, options: argparse.Namespace, trees: Trees, folder: Path) -> None:
        self.case = CASES[options.device]
        self.protocol = replace(PAIR_PROTOCOLS[self.case.device], block_s=options.block_s)
        self.rounds, self.trees, self.folder = options.rounds, trees, folder
        self.gpus = tuple(visible_gpus()) if options.device == "cuda" else ()
        self.label = f"card {options.card}, " if self.gpus else ""
        self._began, self._shown, self._pair_s = time.monotonic(), "", PAIR_S
        self._ends = self._began + options.seconds
        # Launches of the next pair: they import during the profiles of the pair before it.
        self._next: turns.Alive = {}
        self.kernels: dict[str, Any] = {}  # rows of profiles by their keys
        self.pairs: list[dict[str, Any]] = []
        self.failed: list[str] = []

    def measure(self, jobs: Sequence[str], out: Document) -> None:
        """Measure a pair for each job, which is the name of a change, while time is left. Write the
        file after each pair.
        """
        ticker = Ticker(self._show)
        with contextlib.ExitStack() as stack:
            monitor, unfit = watch(self.case, self._bench(self.trees.bases[jobs[0]]), stack, ticker)
            if unfit:
                self.failed.append(unfit.message)

            def start(number: int) -> None:
                """Start the pair that has this number in ``jobs``, if it can end in time."""
                if unfit or number >= len(jobs) or self._ends - time.monotonic() < self._pair_s:
                    self._next = {}
                    return
                benches = self._benches(number, jobs[number])
                sides = [CaseWorkers(self.case, b, ticker, monitor, stack) for b in benches]
                self._next = {
                    tree: RunningLaunch(side, f"pair {number + 1} {NAMES[tree]}", self.protocol)
                    for tree, side in enumerate(sides)
                }

            start(0)
            for number, name in enumerate(jobs):
                if not self._next:
                    start(number)
                if not (pair := self._next) or self._ends - time.monotonic() < self._pair_s:
                    break
                try:
                    found = self._recorded(pair, number, lambda after: start(after + 1))
                    self.pairs.append(about_change(name) | found)
                except WorkersFailed as failed:
                    self.failed.append(f"{name}, pair {number + 1}: {failed.fault.message}"[:2000])
                    self._close(pair)
                out.update(pairs=self.pairs, kernels=self.kernels, failed=self.failed)
        out.update(pairs=self.pairs, kernels=self.kernels, failed=self.failed)

    def _close(self, pair: turns.Alive) -> None:
        for launch in (*pair.values(), *self._next.values()):
            launch.group.close()
        self._next = {}

    def _recorded(
        self, pair: turns.Alive, number: int, start_after: Callable[[int], None]
    ) -> dict[str, Any]:
        """Run one pair to its end. Start the next pair as soon as this one times nothing any more.
        Return what the file keeps. Raises WorkersFailed.
        """
        began, label = time.monotonic(), f"pair {number + 1}"
        order = ORDERS[number % len(ORDERS)]
        for launch in pair.values():
            launch.hello()
        # The first pair compiles, and tries kernels in memory that another launch would lack.
        turns.build(pair, label, first=number == 0)
        built_s = time.monotonic() - began
        turns.run_blocks(pair, order, self.protocol, label, lambda: True)
        ran_s = time.monotonic() - began
        # Imports keep some cores busy. A step that the GPU bounds does not see them.
        start_after(number)
        took: dict[int, list[Any]] = {HEAD: [], BASE: []}
        before = order[-1]
        for now in order * self.rounds:
            if before != now:
                pair[before].park()
            took[now].append(self._turn(pair[now]))
            before = now
        pair[HEAD].leave(pair[BASE])
        took_s = time.monotonic() - began
        if not any(launch.compiled_afresh for launch in pair.values()):
            self._pair_s = took_s + LEFT_S
        return {
            "number": number + 1,
            "gpu": self.gpus[0].uuid if self.gpus else "",
            "order": [NAMES[side] for side in order],
            "s": {"built": round(built_s, 1), "timed": round(ran_s, 1), "all": round(took_s, 1)},
        } | {NAMES[side]: _blocks_of(pair[side]) | {"turns": took[side]} for side in (BASE, HEAD)}

    def _turn(self, launch: RunningLaunch) -> dict[str, Any]:
        """Run untimed steps, then profile a launch. Return the kernels' times step by step."""
        launch.run(block_steps(self.protocol.lead_s, launch.warmup.step_s))
        launch.show("profile")
        launch.ask("profile")
        answer = launch.ask("kernels")[0]
        if (profile := answer.profile) is None:
            return {"problem": answer.problem or "a CPU has no kernels"}
        rows: dict[str, list[Any]] = {}
        for row in profile.kernels:
            identity = identity_of(row)
            key = hashlib.sha1(json.dumps(identity).encode()).hexdigest()[:10]
            self.kernels[key] = identity
            calls = sorted({*row.calls})
            rows[key] = [calls[0] if len(calls) == 1 else row.calls, _rounded(row.us)]
        parts = profile.parts
        return {
            "step_us": _rounded(parts.step_us),
            "compute_us": _rounded(parts.compute_us),
            "idle_us": _rounded(parts.idle_us),
            "kernels": rows,
        }

    def _benches(self, number: int, name: str) -> Iterator[Bench]:
        """Yield the benches of a pair's head and base."""
        base, head = self.trees.bases[name], self.trees.heads[name]
        files = [path for path, _, _ in CHANGES[name].edits]
        changed = changed_modules((head, base), files)
        for tree, other, side in ((head, base, HEAD), (base, head, BASE)):
            folder = self.folder / str(number) / NAMES[side]
            yield self._bench(tree, folder, changed, (other,))

    def _bench(
        self,
        tree: Path,
        folder: Path = Path(),
        changed: frozenset[str] = frozenset(),
        forbidden: tuple[Path, ...] = (),
    ) -> Bench:
        return Bench(
            root=tree,
            cache=self.trees.cache,
            folder=folder,
            gpus=self.gpus,
            revision=current(tree, None),
            command="benchmarks.kernel_pairs",
            own=tree,
            forbidden=forbidden,
            changed=changed,
        )

    def _show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            print(f"{time.monotonic() - self._began:6.1f} s {self.label}{text}", flush=True)


def base_of(name: str) -> str:
    """Return which of BASES a change has."""
    return next(base for base, edits in BASES.items() if edits == CHANGES[name].base_edits)


def about_change(name: str) -> dict[str, Any]:
    """Return a change's name, which base it has, and whether its head is that base's code."""
    return {"change": name, "base_is": base_of(name), "same": name in ALIKE}


def _blocks_of(launch: RunningLaunch) -> dict[str, Any]:
    """Return what a launch's unprofiled blocks took, step by step."""
    blocks = [list(_rounded(block.step_ms)) for block in launch.blocks]
    return {"compiled_afresh": launch.compiled_afresh, "block_step_ms": blocks}


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]


def identity_of(row: KernelRow) -> dict[str, Any]:
    """Return what identifies a row of a profile, in plain types."""
    return {name: msgspec.to_builtins(getattr(row, name)) for name in IDENTITY}


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the documents of several cards as one."""
    return {
        "pairs": [pair for part in parts for pair in part.get("pairs", ())],
        "kernels": {key: row for part in parts for key, row in part.get("kernels", {}).items()},
        "failed": [text for part in parts for text in part.get("failed", ())],
    }


def order_of(changes: Sequence[str], card: int, cards: int) -> list[str]:
    """Return the changes in a card's order. Each card begins with another change. So a short run
    has every change, and two cards rarely compile the same.
    """
    first = card * len(changes) // cards % len(changes)
    return [*changes[first:], *changes[:first]]


def on_all_cards(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure with a process for each card. Return what they found."""
    cards = [gpu.uuid for gpu in visible_gpus()] if options.device == "cuda" else [""]
    began, running, outs = time.monotonic(), [], []
    for number, card in enumerate(cards):
        outs.append(folder / f"card{number}.json")
        command = [sys.executable, "-m", "benchmarks.kernel_pairs", "--device", options.device]
        command += ["--card", str(number), "--folder", str(folder), "--out", str(outs[-1])]
        command += ["--seconds", str(options.seconds), "--rounds", str(options.rounds)]
        command += ["--block-s", str(options.block_s)]
        command += ["--cache", str(options.cache)]
        command += ["--only", *order_of(options.only, number, len(cards))]
        env = os.environ | ({"CUDA_VISIBLE_DEVICES": card} if card else {})
        running.append(subprocess.Popen(command, cwd=ROOT, env=env))
    ended = []
    for number, process in enumerate(running):
        try:
            process.wait(max(1.0, began + options.seconds + OVERTIME_S - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()  # its launches end with it
            process.wait()
        if process.returncode:
            ended.append({"failed": [f"card {number} ended with status {process.returncode}"]})
    return merged([*(json.loads(out.read_text()) for out in outs if out.exists()), *ended])


def main() -> int:
    """Record pairs; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[*USUAL], choices=CHANGES, metavar="CHANGE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=250.0, help="in all (%(default)s)")
    text = "orders of profiled turns in a pair, two profiles of each launch a round (%(default)s)"
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=text)
    text = "of each unprofiled block, two a launch (%(default)s)"
    parser.add_argument("--block-s", type=float, default=BLOCK_S, help=text)
    parser.add_argument("--cache", type=Path, help="compile caches to share with other runs")
    parser.add_argument("--out", type=Path, required=True, help="result file")
    for hidden in ("--card", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.card:  # a process of on_all_cards()
        folder = Path(options.folder)
        trees = Trees.of(folder, options.cache, options.only)
        card = Card(options, trees, folder / f"runs{options.card}")
        card.measure(
            list(islice(cycle(options.only), MOST_PAIRS)), Document(options.out, indent=None)
        )
        return 0
    count = len(visible_gpus()) if options.device == "cuda" else 1
    document = Document(options.out, about(options.device, count), indent=None)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        options.cache = (options.cache or Path(folder, "cache")).resolve()
        options.cache.mkdir(parents=True, exist_ok=True)
        Trees.of(Path(folder), options.cache, options.only).make()
        options.seconds -= time.monotonic() - began
        document.update(case=CASES[options.device].id, **on_all_cards(options, Path(folder)))
    pairs = document.content["pairs"]
    print(f"{len(pairs)} pairs in {options.out}; failed: {document.content['failed'] or 'none'}")
    return 0 if pairs else 1


if __name__ == "__main__":
    sys.exit(main())
