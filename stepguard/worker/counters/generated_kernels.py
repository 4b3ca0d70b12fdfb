"""Count what the machine code of the compiler's kernels consists of, without running them.

Inductor keeps an autotuner for each kernel that it generated. The autotuner tries several forms of
the kernel. Once the kernel has run, only the launcher of the fastest form is left. Triton keeps the
machine code of each form on disk. All names that are private to torch are in this module; torch
2.8, 2.11 and 2.13 have them.

Not seen: kernels of libraries, and those of Triton outside of a compiled region.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepguard.core.metrics import FP64, OF_KERNELS, OPERATORS, SPILLS
from stepguard.core.profile import MachineCode, Profile, summed
from stepguard.core.site import Site
from stepguard.core.text import listed
from stepguard.trace.kernel_classes import operator_in, usual_classes
from stepguard.worker.counters.cubin import (
    DISASSEMBLER,
    CubinError,
    instructions_of,
    read_cubin,
)
from stepguard.worker.counters.tally import RankStep, StepCounter, Tally

PLACES = 5  # lines that may be a kernel's; of more than these none is shown
_TO_FP64 = "_to_copy[float64]"
Codes = dict[tuple[str, str], MachineCode]  # by kernel, and Launched.source


@dataclass(frozen=True)
class Launched:
    """A form of a kernel that was launched."""

    folder: Path  # of Triton's cache; it has the machine code
    source: str  # the hash that a profile has: of the source, or as hash_kernels() set it
    shared_bytes: int  # of a block


def count_machine_code(tally: Tally, counted: RankStep) -> None:
    """Count spill_bytes and fp64_kernels, after the profile, which gets the machine code."""
    try:
        codes = _machine_codes(list(launched()))
        profile = _with_machine_code(tally.profile, codes) if tally.profile else None
    except (CubinError, OSError) as error:
        reason = f"{error}; mend it, or take the metric out of the case's gates"
        tally.missing(reason, *OF_KERNELS)
        return
    tally.profile = profile
    # Two graphs may have a kernel of one name.
    spills = summed((kernel, code.spill_bytes) for (kernel, _), code in codes.items())
    fp64 = summed((kernel, code.fp64) for (kernel, _), code in codes.items())
    tally.add_parts(SPILLS, [+spills])
    tally.add(FP64, [sum(code.fp64 > 0 for code in codes.values())], +fp64)


def _machine_codes(kernels: Sequence[Launched]) -> Codes:
    cubins = [read_cubin(_image(kernel.folder)) for kernel in kernels]
    instructions = instructions_of(cubins, _disassembler()) if cubins else []
    return {
        (cubin.kernel, kernel.source): MachineCode(
            registers=cubin.registers,
            spill_bytes=cubin.spill_bytes,
            shared_bytes=kernel.shared_bytes,
            **counted,
        )
        for kernel, cubin, counted in zip(kernels, cubins, instructions, strict=True)
    }


def _with_machine_code(profile: Profile, codes: Codes) -> Profile:
    """Return a profile with machine code. Raises CubinError if a kernel has none."""
    rows = [replace(row, machine_code=codes.get((row.name, row.code))) for row in profile.kernels]
    if lost := [row.name for row in rows if row.code and row.machine_code is None]:
        raise CubinError(f"the compiler's records lack {listed(lost, 1)}")
    return replace(profile, kernels=tuple(rows))


def hash_kernels() -> None:
    """Give each generated kernel that lacks a hash of its source the hash of its compiled form.
    Profiles have this hash.

    The compiler hashes no kernel that it makes from a template, such as flex attention. The hash
    is Triton's. It also covers functions that the kernel calls, such as the score of an attention.
    A kernel of another torch, whose records differ, stays without one: its code is not known.
    """
    for tuner in _tuners():
        forms = [getattr(one, "cache_hash", "") for one in getattr(tuner, "launchers", ())]
        if not getattr(tuner, "kernel_hash", "no record") and len(forms) == 1 and forms[0]:
            tuner.kernel_hash = str(forms[0])


def _tuners() -> list[Any]:
    compiler = sys.modules.get("torch._inductor.codecache")
    graphs = getattr(getattr(compiler, "PyCodeCache", None), "modules", ())
    values = (value for graph in list(graphs) for value in list(vars(graph).values()))
    heuristics = sys.modules.get("torch._inductor.runtime.triton_heuristics")
    kind = getattr(heuristics, "CachingAutotuner", ())
    return list({id(value): value for value in values if isinstance(value, kind)}.values())


def launched() -> Iterator[Launched]:
    """Yield each generated kernel that ran. Raises CubinError if it is not known where."""
    seen: set[Path] = set()
    for tuner in _tuners():
        try:
            kernel = _launched(tuner)
        except (AttributeError, KeyError, TypeError) as error:
            raise CubinError(f"this torch does not say where its kernels are ({error!r})") from None
        if kernel and kernel.folder not in seen:
            seen.add(kernel.folder)
            yield kernel


def _launched(tuner: Any) -> Launched | None:
    """Return the form of a kernel that runs; None if it never ran yet, or runs on a CPU."""
    if tuner.device_props.type != "cuda" or len(tuner.launchers) != 1:
        return None
    (launcher,) = tuner.launchers
    caches: Any = sys.modules["torch._inductor.runtime.cache_dir_utils"]
    folder = Path(caches.triton_cache_dir(tuner.device_props.index), launcher.cache_hash)
    return Launched(folder, str(tuner.kernel_hash), int(launcher.shared))


def _image(folder: Path) -> bytes:
    files = sorted(folder.glob("*.cubin"))
    if len(files) != 1:
        raise CubinError(f"{folder} has {len(files)} cubins instead of one")
    return files[0].read_bytes()


def _disassembler() -> Path:
    triton = sys.modules.get("triton")
    file = getattr(triton, "__file__", None)
    if file is None:
        raise CubinError("triton is not imported, and it brings the disassembler")
    path = Path(file).parent / DISASSEMBLER
    if not path.exists():
        raise CubinError(f"there is no {path}: triton's own wheel brings it")
    return path


def locate_machine_code(tally: Tally, counted: RankStep) -> None:
    """Add the lines of the kernels that spill or use fp64. Operators must be counted."""
    operators = [site for site in tally.sites.get(OPERATORS, ()) if site.file]
    for metric in OF_KERNELS:
        parts = tally.detail.get(metric, {}) if tally.values.get(metric) else {}
        sites = [
            site
            for kernel, count in parts.items()
            for site in _places(kernel, count if metric == SPILLS else 1, metric, operators)
        ]
        if sites:
            tally.sites[metric] = tuple(sites)


def _places(kernel: str, count: int, metric: str, operators: Sequence[Site]) -> list[Site]:
    """Return a Site for each line that may be the kernel's, or one without a line."""
    mine = [site for site in operators if operator_in(kernel, site.what)]
    # What a backward pass or an optimizer calls has the line that starts it.
    mine = [site for site in mine if not site.phase] or mine
    if metric == FP64:
        mine = [site for site in mine if _TO_FP64 in site.what] or mine
    # Without the compiler's number, which moves with every other kernel.
    what = usual_classes().canonical_name(kernel)
    lines = {(site.file, site.line): site for site in mine}
    if not 0 < len(lines) <= PLACES:
        return [Site(what, count=count)]
    return [
        Site(what, site.file, site.line, site.function, site.text, count=count)
        for site in lines.values()
    ]


COUNTER = StepCounter("machine code", OF_KERNELS, count_machine_code, locate_machine_code)
