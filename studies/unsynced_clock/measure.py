"""Compare what a clock around a training step reads with what the step takes.

A GPU works through a queue. A host clock read before the queue has drained says how long it took to
fill, and a removed synchronize() then looks like a faster step. Six ways to run one
data-parallel step alternate in blocks; over six series each takes each place once:

    P   pinned inputs, non-blocking copies, no host sync      PS  P and synchronize() each step
    U   pageable inputs, blocking .to(device)                 US  U and synchronize() each step
    UI  U and loss.item() after the clock is read             PI  P and the same

True time is the wall clock from synchronize to synchronize over the block's steps, slowest rank.
After the timing come host and GPU time by phase, and a profile of each variant on rank 0.

    python -m studies.unsynced_clock.measure --gpus 4 --out clock.json --markdown clock.md \\
        --svg clock.svg
    python -m studies.unsynced_clock.measure --device cpu --ranks 2 --steps 3 --warm-up-steps 1 \\
        --warm-up-s 0 size=nano batch=2 seq=64 precision=fp32 compile=false

The default is 2 x 64 x 1024 tokens a GPU and a step. The JSON is written after every series, so
that what was measured is not lost, and not before the first; exit status 1 says that something is
missing from it.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError
from stepguard.cli.profilers.files import read_ranks
from stepguard.cli.workload import parse_params
from stepguard.git.revision import current
from stepguard.storage.json_file import FileError
from stepguard.trace.classes import usual_classes
from stepguard.trace.summary import summary
from studies.common import ranks
from studies.common.results import ROOT, Document, command_line, default_path, machine
from studies.unsynced_clock import charts, report

GRACE_S = 180.0  # beyond --limit-s, until a group that hangs is ended


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="The rest is explained at the top of this file.",
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--gpus", "--ranks", dest="ranks", type=int, default=4)
    parser.add_argument("--series", type=int, default=6, help="at most (%(default)s)")
    parser.add_argument("--steps", type=int, default=12, help="of a block (%(default)s)")
    parser.add_argument("--warm-up-steps", type=int, default=40, help="at least (%(default)s)")
    parser.add_argument("--warm-up-s", type=float, default=5.0, help="at least (%(default)s)")
    parser.add_argument("--profile-steps", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--limit-s", type=float, default=240.0, help="series stop in time for it")
    parser.add_argument("--out", type=Path, help="(.stepguard/unsynced_clock.json)")
    parser.add_argument("--markdown", type=Path, help="write the tables there too")
    parser.add_argument("--svg", type=Path, help="draw charts (with matplotlib)")
    parser.add_argument("params", nargs="*", metavar="key=value", help="of model.workloads")
    options = parser.parse_args()
    options.out = options.out or default_path("unsynced_clock.json")
    for name in ("ranks", "series", "steps", "profile_steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; possible: 1 up")
    try:
        options.params = {"lr": 0.0} | parse_params(options.params)  # a step stays the same
    except UsageError as error:
        parser.error(str(error))
    if options.svg and find_spec("matplotlib") is None:
        parser.error("--svg: pip install matplotlib")
    for path in filter(None, (options.out, options.markdown, options.svg)):
        if not path.resolve().parent.is_dir():
            parser.error(f"{path}: there is no folder {path.resolve().parent}")
    return options


def measure(options: argparse.Namespace, document: Document, folder: Path) -> str:
    """Run the ranks and take over their results while they come; what went wrong, or ""."""
    passed_on = {
        name: getattr(options, name)
        for name in ("device", "series", "steps", "warm_up_steps", "warm_up_s")
        + ("profile_steps", "limit_s")
    }
    passed_on |= {
        "params": document.content["params"],
        "folder": str(folder),
        "began": time.time(),
        "after_s": 25.0 + 10 * options.profile_steps if options.device == "cuda" else 5.0,
    }
    program = ["-m", "studies.unsynced_clock.rank", json.dumps(passed_on)]
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if options.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    group = ranks.start(program, options.ranks, env=env)
    until = time.monotonic() + options.limit_s + GRACE_S
    try:
        while group.poll() is None:
            if time.monotonic() > until:
                return f"the ranks did not end within {options.limit_s + GRACE_S:.0f} s"
            time.sleep(0.5)
            take_over(document, folder)
    finally:
        ranks.end(group)
    take_over(document, folder)
    if not group.returncode:
        return ""
    raised = sorted(folder.glob("raised-*"))  # by rank
    why = f": {raised[0].read_text()}" if raised else ""
    return f"torchrun ended with status {group.returncode}{why}"


def take_over(document: Document, folder: Path) -> None:
    """Whatever the ranks have written since, into the document."""
    path = folder / "ranks.json"
    if not path.is_file():
        return
    found = json.loads(path.read_text())
    if not found["series"] or found.items() <= document.content.items():
        return
    found["summary"] = report.summary(found["series"], found["tokens_per_step"])
    document.update(**found)


def read_profiles(document: Document, folder: Path) -> None:
    """From the traces of rank 0 to shares."""
    profiles: dict[str, Any] = {}
    for name in document.content.get("profiled", []):
        path = folder / f"{name}.trace.json"
        try:
            classes = replace(usual_classes(), steps=(f"^{report.MARK}$",))
            ((_, analysed),) = read_ranks([path], classes).values()
        except FileError as error:
            print(f"profile of {name}: {error}", file=sys.stderr)
            continue
        profiles[name] = report.profile_figures(summary(analysed, name, 0))
        document.update(profiles=profiles)


def tables(content: dict[str, Any]) -> str:
    """Everything there is, as Markdown."""
    parts = []
    if "summary" in content:
        parts += ["### Time\n", report.timing_table(content["summary"])]
    if "summary" in content:
        content = {"profiles": {}} | content
        parts += ["### CUDA API, rank 0\n", report.api_table(content["profiles"])]
        parts += ["### Kernels, rank 0\n", report.kernel_table(content["profiles"])]
    if content.get("phases"):
        parts += ["### Phases, rank 0\n", report.phase_table(content["phases"])]
    return "\n".join(parts)


def shortcomings(content: dict[str, Any], fault: str) -> list[str]:
    """Return the reasons for which the document is incomplete."""
    found = [fault] if fault else []
    if "summary" not in content:
        return [*found, "no series was finished"]
    if len(content["series"]) < 2:
        found.append("one series only: no interval")
    profiled = report.WHAT if content["machine"]["device"] != "CPU" else ()  # no kernels there
    found += [f"no profile of {n}" for n in profiled if n not in content.get("profiles", {})]
    found += [f"no phases of {n}" for n in report.WHAT if n not in content.get("phases", {})]
    before, after = content.get("graphs_before"), content.get("graphs_after")
    if before != after and after is not None:
        found.append(f"compiled while it was timed: {before} graphs before, {after} after")
    return found


def main() -> int:
    """Measure, then say what was found."""
    options = arguments()
    document = Document(
        options.out,
        {
            "benchmark": "unsynced_clock",
            "command": command_line(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": current(ROOT, ROOT / "baselines").commit,
            "machine": machine(options.device, options.ranks),
            "params": options.params,
            "steps_per_block": options.steps,
        },
    )
    with tempfile.TemporaryDirectory(prefix="unsynced-clock-") as folder:
        try:
            fault = measure(options, document, Path(folder))
            read_profiles(document, Path(folder))
        except KeyboardInterrupt:
            fault = "interrupted"
    missing = shortcomings(document.content, fault)
    if "summary" in document.content:
        document.update(missing=missing)
        write(options, document.content)
    for one in missing:
        print(f"MISSING: {one}", file=sys.stderr)
    return 1 if missing else 0


def write(options: argparse.Namespace, content: dict[str, Any]) -> None:
    """The tables and the picture, to where they were asked for."""
    found = tables(content)
    print("\n" + found)
    if options.markdown:
        options.markdown.write_text(found, encoding="utf-8")
    if options.svg:
        charts.draw(content, options.svg)
    print(f"raw figures: {options.out}")


if __name__ == "__main__":
    sys.exit(main())
