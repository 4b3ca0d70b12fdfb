"""The refusal of options that would turn the gate off, or that could not be obeyed."""

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stepguard.git.resolve import TreeError, resolve
from stepguard.git.revision import current, no_commit
from stepguard.gpu.nvml import known_gpus
from stepguard.judge.acceptance import has_words
from stepguard.report import documents
from stepguard.text import printable

TEXTS = ("reason", "baselines", "base", "against", "launcher", "json", "report")


def refuse_bad_options(config: pytest.Config, root: Path, baselines: Path, gpus: int) -> None:
    """Raise UsageError for what would pass cases unmeasured, or could not be done."""
    for problem in _problems(config, root, baselines, gpus):
        raise pytest.UsageError(printable(problem))


def refuse_unmeasured(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Raise UsageError for options of pytest-benchmark that would pass these tests unmeasured."""
    start = Path(config.invocation_params.dir)
    files = sorted({os.path.relpath(item.path, start) for item in items})
    leave_out = " ".join(f"--ignore={shlex.quote(file)}" for file in files)
    for name in ("--benchmark-skip", "--benchmark-disable"):
        if files and config.getoption(name, False):
            raise pytest.UsageError(
                f"{name} would pass the performance cases unmeasured; leave them out of this run: "
                f"{printable(leave_out)}"
            )


def _problems(config: pytest.Config, root: Path, baselines: Path, gpus: int) -> Iterator[str]:
    option = config.option
    texts = {f"--perf-{name}": getattr(option, f"perf_{name}") for name in TEXTS}
    for name, value in texts.items():
        # An empty value would quietly choose another gate, --perf-against= the stored baseline.
        if value is not None and not value.strip():
            yield f"{name}={value}: empty; a variable that is not set, maybe"
    wanted = f"--perf-require-gpus={option.perf_require_gpus}"
    if option.perf_require_gpus < 0:
        yield f"{wanted}: 0 asks for none, 1 up for so many"
    if gpus < option.perf_require_gpus:
        yield f"{wanted}: this machine shows {gpus}; see: python -m stepguard doctor"
    if option.perf_require_gpus > 0 and gpus < (known := known_gpus()):
        yield (
            f"{wanted}: this machine has {known} and shows {gpus}, so cases of more would be "
            "skipped; look at CUDA_VISIBLE_DEVICES"
        )
    updates, reason = option.perf_update or option.perf_update_new, option.perf_reason
    if reason is not None and not (has_words(reason) and reason.isprintable()):
        yield f"--perf-reason={reason!r}: write a line of words"
    if reason is not None and not updates:
        yield "--perf-reason: nothing is recorded; it goes with --perf-update or --perf-update-new"
    if not 0 < option.perf_budget < 1e6:  # NaN neither
        yield f"--perf-budget={option.perf_budget}: a number of minutes"
    if option.perf_against and updates:
        yield "--perf-against judges against a revision, not a baseline: record in another run"
    if option.perf_against:
        yield from _bad_revision(option.perf_against, root, baselines)
    if option.perf_base and updates:
        yield "--perf-base judges by another branch's baselines: record in another run"
    if updates and (problem := no_commit(root)):
        yield f"nothing can be recorded: {problem}"
    if option.perf_baselines and not baselines.is_dir():
        yield f"--perf-baselines={option.perf_baselines}: no such folder"
    for name in ("--perf-json", "--perf-report"):
        path = Path(config.invocation_params.dir, texts[name] or "")
        if texts[name] and (problem := documents.unwritable(path)):
            yield f"{name}={texts[name]}: {problem}"


def _bad_revision(rev: str, root: Path, baselines: Path) -> Iterator[str]:
    try:
        named = resolve(root, rev)
    except TreeError as error:
        yield f"--perf-against={rev}: {error}"
        return
    head = current(root, baselines)
    # Spelled HEAD it is meant: that is how calibration measures.
    if named.commit == head.commit and not head.dirty and rev != "HEAD":
        yield (
            f"--perf-against={rev}: that is HEAD itself, without a change, and always the same; "
            "to compare the machine with itself say --perf-against=HEAD"
        )
