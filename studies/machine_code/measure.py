"""Is one instruction more in a generated kernel seen in its machine code, and what does that cost?

    python -m studies.machine_code.measure --out machine_code.json

A compiled step has twenty kernels, each between two products. A plant turns x * x of one of them
into x * x * x: one multiplication more for each element, by another scalar of the same operator, so
that no count of operators moves. Each plant is compiled in a process and a cache of its own, and so
are the unchanged steps: autotuning may choose another form of a kernel each time. One more process
counts a whole pass beside a base and prints what a verdict would say. Another counts the machine
code of the compiled 124M train step and its seconds. At most 100 s on an H100 with 16 cores; a line
of JSON after each part.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

KERNELS, UNCHANGED, WIDTH = 20, 8, 512
AT_ONCE, CHILD_S = 10, 85.0
FIGURES = (
    *("registers", "spill_bytes", "shared_bytes", "instructions"),
    *("fp64", "tensor_core", "atomic"),
)


def main() -> None:
    """Run all children, and write what they say."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("machine_code.json"))
    parser.add_argument("--child", nargs="+")
    options = parser.parse_args()
    if options.child:
        kind, *arguments = options.child
        print(json.dumps(CHILDREN[kind](*arguments)))
        return
    began = time.monotonic()
    jobs = [("step",), ("verdict",), *[("sheet", "-1")] * UNCHANGED]
    jobs += [("sheet", str(plant)) for plant in range(KERNELS)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        told = dict(zip(range(len(jobs)), pool.map(_run, jobs), strict=True))
    step, verdict, *sheets = told.values()
    unchanged, planted = sheets[:UNCHANGED], sheets[UNCHANGED:]
    document = {
        "seconds": round(time.monotonic() - began, 1),
        "train_step": step,
        "verdict": verdict,
        "unchanged": _unchanged(unchanged),
        "planted": _planted([s for s in unchanged if "codes" in s], planted),
    }
    options.out.write_text(json.dumps(document | {"sheets": sheets}, indent=1) + "\n")
    for name, part in document.items():
        print(json.dumps({name: part}))


def _run(job: tuple[str, ...]) -> dict[str, Any]:
    """Return what a child prints last, or why it printed nothing."""
    with tempfile.TemporaryDirectory() as cache:
        own = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
        own["TORCHINDUCTOR_COMPILE_THREADS"] = "8" if job == ("step",) else "2"
        command = [sys.executable, "-m", "studies.machine_code.measure", "--child", *job]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=CHILD_S, env=os.environ | own
            )
        except subprocess.TimeoutExpired:
            return {"problem": f"{job} took more than {CHILD_S} s"}
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return {"problem": f"{job}: {done.returncode}: {done.stderr[-1500:]}"}


def _unchanged(sheets: list[dict[str, Any]]) -> dict[str, Any]:
    """Return in how many kernels any two unchanged compilations differ."""
    codes = [sheet["codes"] for sheet in sheets if "codes" in sheet]
    names = sorted({name for each in codes for name in each})
    moving = {
        name: seen for name in names if len(seen := {str(each.get(name)) for each in codes}) > 1
    }
    return {
        "compilations": len(codes),
        "kernels": len(names),
        "kernels_that_differ": {name: sorted(seen) for name, seen in moving.items()},
        "count_s": [sheet.get("count_s") for sheet in sheets],
        "problems": [sheet["problem"] for sheet in sheets if "problem" in sheet],
    }


def _planted(unchanged: list[dict[str, Any]], planted: list[dict[str, Any]]) -> dict[str, Any]:
    """Return in which plants a kernel differs from all unchanged compilations, and of how many
    unchanged ones the same would be said, given the others.
    """
    rows = []
    for number, sheet in enumerate(planted):
        if "problem" in sheet:
            rows.append({"plant": number, "problem": sheet["problem"]})
            continue
        other = _other(sheet, unchanged)
        right = sheet["planted"] in other
        rows.append({"plant": number, "seen": bool(other), "at_it": right, "moved": other})
    seen = [row for row in rows if row.get("seen")]
    alone = sum(len(row["moved"]) == 1 and row["at_it"] for row in seen)
    alarms = [
        other
        for at, sheet in enumerate(unchanged)
        if (other := _other(sheet, unchanged[:at] + unchanged[at + 1 :]))
    ]
    told = {"seen": len(seen), "of": len(rows), "it_alone": alone, "rows": rows}
    return told | {"false_alarms": len(alarms), "of_unchanged": len(unchanged), "alarms": alarms}


def _other(sheet: dict[str, Any], unchanged: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the kernels that differ from all unchanged compilations, with the figures of one."""
    other = {}
    for name, code in sheet["codes"].items():
        known = [each["codes"][name] for each in unchanged if name in each["codes"]]
        if code not in known:
            old = known[0] if known else [None] * len(FIGURES)
            both = zip(FIGURES, old, code, strict=True)
            other[name] = {figure: [was, now] for figure, was, now in both if was != now}
    return other


def _bodies(plant: int) -> Iterator[Callable[[Any], Any]]:
    """Yield what each kernel computes, with the plant in one of them."""
    import torch.nn.functional as F

    kinds: list[Callable[[Any, int], Any]] = [
        lambda x, power: F.gelu(x).pow(power),
        lambda x, power: F.layer_norm(x.pow(power), (WIDTH,)),
        lambda x, power: F.silu(x + 1).pow(power),
        lambda x, power: (x.pow(power) * 0.1).softmax(-1),
        lambda x, power: x.pow(power) / (1 + x.abs()),
    ]
    for number in range(KERNELS):
        kind, power = kinds[number % len(kinds)], 3 if number == plant else 2
        # Without a factor of its own a kernel would be the same one as another of its kind.
        yield lambda x, kind=kind, power=power, by=1 + number / 64: kind(x * by, power)


def _step(plant: int) -> Callable[[], object]:
    import torch

    torch.manual_seed(0)
    weights = [torch.randn(WIDTH, WIDTH, device="cuda") * 0.05 for _ in range(KERNELS)]
    x = torch.randn(4096, WIDTH, device="cuda")

    layers = list(zip(weights, _bodies(plant), strict=True))

    def forward(x: Any) -> Any:
        for weight, body in layers:
            x = body(x @ weight)
        return x

    compiled = torch.compile(forward)
    return lambda: compiled(x)


def _codes() -> tuple[dict[str, tuple[int, ...]], float]:
    """Return the figures of each kernel that ran, and the seconds that they took."""
    from dataclasses import astuple

    from stepguard.worker.counters.generated_kernels import _machine_codes, launched

    began = time.perf_counter()
    codes = _machine_codes(list(launched()))
    return {name: astuple(code) for (name, _), code in codes.items()}, time.perf_counter() - began


def sheet(plant: str) -> dict[str, Any]:
    """Return the machine code of a step with that plant, -1 for none."""
    import torch

    step = _step(int(plant))
    step()
    torch.cuda.synchronize()
    codes, seconds = _codes()
    mine = next((name for name in codes if name.endswith(f"_{plant}")), "")
    return {"codes": codes, "count_s": round(seconds, 3), "planted": mine}


def verdict() -> dict[str, Any]:
    """Return the lines of a comparison of two counting passes, unchanged and planted, without the
    part that switches the compiler off.
    """
    import torch
    from torch._inductor.codecache import PyCodeCache

    from stepguard.explain.causes import explain
    from stepguard.report.cause_text import machine_code, named
    from stepguard.worker.counters import counting
    from stepguard.worker.counters.tally import RankStep
    from stepguard.worker.rank_position import Phases

    passes, kept = [], []
    for plant in (-1, 7):
        PyCodeCache.modules = []
        phases, run = Phases(), _step(plant)

        def step() -> None:
            phases("forward")
            run()

        step()
        began = time.perf_counter()
        tally = counting.count_compiled(
            RankStep(step, torch.device("cuda", 0), phases), lambda text: None
        )
        kept.append(tally.profile)
        seconds = round(time.perf_counter() - began, 2)
        passes.append({"count_s": seconds, "values": tally.values})
    found = explain(*kept)
    old, new = (each["values"] for each in passes)
    return {
        "passes": passes,
        "other_values": [name for name in old if new.get(name) != old[name]],
        "causes": _lines(found.causes, named, machine_code),
        "other_machine_code": _lines(found.other_machine_code or (), named, machine_code),
    }


def _lines(causes: Iterable[Any], named: Any, machine_code: Any) -> list[str]:
    return [f"{c.us:+.2f} us {named(c)}: {machine_code(c)}" for c in causes]


def step() -> dict[str, Any]:
    """Return the seconds of the machine code of the compiled 124M train step, and its kernels."""
    import torch

    from model.workloads import train_step

    began = time.perf_counter()
    work = train_step(size="124m", batch=4, seq=1024, micro_steps=2, lr=0.0)
    for _ in range(2):
        work.step()
    torch.cuda.synchronize()
    compiled_s = time.perf_counter() - began
    codes, seconds = _codes()
    return {
        "first_steps_s": round(compiled_s, 1),
        "count_s": round(seconds, 3),
        "again_s": round(_codes()[1], 3),
        "kernels": len(codes),
        "instructions": sum(code[3] for code in codes.values()),
        "spill_bytes": sum(code[1] for code in codes.values()),
        "fp64_kernels": sum(code[4] > 0 for code in codes.values()),
    }


CHILDREN: dict[str, Callable[..., dict[str, Any]]] = {
    "sheet": sheet,
    "verdict": verdict,
    "step": step,
}

if __name__ == "__main__":
    main()
