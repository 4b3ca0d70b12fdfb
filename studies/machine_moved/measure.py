"""Judge unchanged code on a machine that is slower than its baseline.

    python -m studies.machine_moved.measure --out moved.json
    python -m studies.machine_moved.measure --only "a faster card's recordings" --out moved.json

Each time the core train step is run in a clone, as `pytest perf_tests` runs it, and confirmed on
the spot where the screen says SLOWER. No verdict may be SLOWER; a baseline that does not fit the
case ends this. Other work on the card is products of large matrices in a process of its own; "in
the screen only" it ends when the pairs begin. Work that cannot be seen is as if in another
container: the run has its own process namespace (unshare, as root), where the driver does not list
it. A faster card's recordings are those of the baseline with every time multiplied by --share.
Every verdict goes to --out as soon as it is known, with the pairs that confirmed it, in the form of
studies/judge_power/pairs.py.
"""

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepguard.comparison import from_json
from studies.common.clones import clone_head, commit_all, only_case, share_cache
from studies.common.pair_data import as_data
from studies.common.results import Document, command_line

CASE = "test_train_step and 124m-bf16"
LOAD = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range({products}):
        a @ a
    torch.cuda.synchronize()
    time.sleep(0.05)
"""
THROUGHOUT, SCREEN, HIDDEN, FASTER = (
    "other work throughout",
    "other work in the screen only",
    "work that cannot be seen, in the screen only",
    "a faster card's recordings",
)
# The shell is the namespace's first process, which has to collect whatever is orphaned in it.
UNSEEN = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
UNSEEN += ("sh", "-c", '"$@"; exit $?', "sh")


def faster(text: str, case: str, share: float) -> str:
    """A baseline file whose recordings of the case took ``share`` of their times.

    Raises KeyError for a case that it does not hold.
    """
    content: dict[str, Any] = json.loads(text)
    for epoch in content["cases"][case]["epochs"]:
        for recording in epoch["recordings"]:
            for name, launches in recording["times_ms"].items():
                recording["times_ms"][name] = [round(share * ms, 5) for ms in launches]
    return json.dumps(content, indent=1) + "\n"


def clone(folder: Path, what: str, share: float, baseline: str, case: str) -> Path:
    """A clone of HEAD; the recordings are committed if they are other ones."""
    tree = clone_head(folder / re.sub(r"\W+", "-", what))
    if what == FASTER:
        path = tree / "baselines" / baseline
        path.write_text(faster(path.read_text(), case, share))
        commit_all(tree, "faster")
    return tree


def pairs_began(tree: Path) -> bool:
    """Return whether the run has begun its A/B comparison."""
    return any((tree / ".stepguard" / "runs").glob("**/base/*"))


def confirmation(tree: Path) -> dict[str, object] | None:
    """Return the pairs with the recording's commit, or None if there were none."""
    kept = next((tree / ".stepguard" / "runs").glob("*/*/comparison.json"), None)
    return as_data(from_json(kept.read_bytes(), str(kept))) if kept else None


@contextlib.contextmanager
def other_work(products: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that works on the card; it is gone at the end, whatever happened."""
    load = subprocess.Popen([sys.executable, "-c", LOAD.format(products=products)])
    try:
        time.sleep(10)
        yield load
    finally:
        load.kill()
        load.wait()


def run(tree: Path, folder: Path, what: str, products: int, extra: list[str]) -> dict[str, object]:
    """One run of the case; its verdict, and what stands under it."""
    document, log = folder / "run.json", folder / "run.log"
    document.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "perf_tests", "-q", "-k", CASE]
    command += ["-m", "not extended", f"--perf-json={document}", *extra]
    if what == HIDDEN:
        command = [*UNSEEN, *command]
    loaded = what in (THROUGHOUT, SCREEN, HIDDEN)
    with other_work(products) if loaded else contextlib.nullcontext() as load:
        began, ended_after = time.monotonic(), None
        with log.open("w") as file:
            gate = subprocess.Popen(command, cwd=tree, stdout=file, stderr=subprocess.STDOUT)
        while gate.poll() is None:
            time.sleep(0.2)
            if what in (SCREEN, HIDDEN) and load and load.poll() is None and pairs_began(tree):
                load.kill()
                ended_after = round(time.monotonic() - began, 1)
    found = only_case(document, log.read_text())["verdict"]
    if found["status"] in ("NOT COMPARABLE", "NO BASELINE"):
        raise SystemExit(f"nothing was judged: {found['status']}: {found['message']}")
    steps = [one for one in found["metrics"] if one["metric"].startswith("step_ms")]
    return {
        "verdict": found["status"],
        "reason": found["reason"],
        "message": found["message"],
        "times": steps,
        "load_ended_after_s": ended_after,
        "exit_status": gate.returncode,
        "wall_s": round(time.monotonic() - began, 1),
        "text": log.read_text().splitlines()[-25:],
        "confirmation": confirmation(tree),
    }


def main() -> None:
    """Every scenario; each verdict is kept."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    kinds = (THROUGHOUT, SCREEN, HIDDEN, FASTER)
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--products", type=int, default=10, help="a burst (%(default)s)")
    parser.add_argument("--share", type=float, default=0.93, help="(%(default)s)")
    parser.add_argument("--baseline", default="h200x1.json", help="(%(default)s)")
    parser.add_argument("--case", default="train_step[124m-bf16]", help="(%(default)s)")
    parser.add_argument("--cache", type=Path, help="compile caches to share with other runs")
    parser.add_argument("--pytest", nargs="*", default=[], help="more options of pytest's")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    kept: list[dict[str, object]] = []
    document = Document(options.out, {"command": command_line()})
    with tempfile.TemporaryDirectory() as name:
        for what in options.only:
            tree = clone(Path(name), what, options.share, options.baseline, options.case)
            share_cache(tree, options.cache)
            found = run(tree, Path(name), what, options.products, options.pytest)
            kept.append({"what": what} | found)
            document.update(runs=kept)
            print(f"{what}: {kept[-1]['verdict']}, {kept[-1]['reason']}", flush=True)


if __name__ == "__main__":
    main()
