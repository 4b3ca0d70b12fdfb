"""All that pytest's terminal shows of a run: the machine, the progress line, verdicts among the
failures, the summary.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from stepguard.core.case import Case
from stepguard.core.text import counted, listed, printable
from stepguard.machine.gpu import Gpu
from stepguard.measure.suite import Result
from stepguard.report import terminal_summary
from stepguard.report.progress_line import (
    Display,
    ProgressLine,
    columns,
    has_cursor,
)


def progress_line(
    config: pytest.Config, cases: Sequence[Case], last_s: dict[str, float]
) -> ProgressLine:
    """Return the run's line on pytest's terminal. ``last_s``: each case's last seconds."""
    display = _display(config, config.pluginmanager.getplugin("terminalreporter"))
    devices = {case.id: case.device for case in cases}
    return ProgressLine(display, config.option.verbose > 0, devices, last_s)


def _display(config: pytest.Config, reporter: Any) -> Display:
    """Return a display that writes to pytest's terminal past pytest's capturing."""
    capture = config.pluginmanager.getplugin("capturemanager")
    uncaptured = capture.global_and_fixture_disabled if capture else contextlib.nullcontext
    if reporter is None:
        return Display(lambda text: None)
    writer, file = reporter._tw, reporter._tw._file
    with uncaptured():  # otherwise the file may be the one into which pytest captures
        terminal = has_cursor(file)

    def write(text: str) -> None:
        with uncaptured():
            if not terminal:
                writer.write(text, flush=True)
                return
            # Not through the writer, which counts the columns of pytest's own text.
            file.write(text)
            file.flush()

    def width() -> int:
        with uncaptured():
            return columns(file)

    return Display(write, terminal, width, lambda: int(writer.width_of_current_line))


def machine_and_judge(gpus: Sequence[Gpu], folder: str, against: str) -> str:
    """Return on what machine a run measures, and which revision or folder judges."""
    judge = f"baselines in {folder}/"
    if against:
        judge = f"judged against {against}, measured beside it on this machine"
    if not gpus:
        return f'no GPU: cases of device="cpu" only; {judge}'
    names = ", ".join(f"{gpu.name} ({gpu.uuid[:12]})" for gpu in gpus)
    return f"{names}, driver {gpus[0].driver}; {judge}"


def interrupted_lines(cases: Sequence[Case], results: Sequence[Result]) -> list[str]:
    """Return how an interrupted run ended a case, and which cases were not measured."""
    measured = {result.case.id for result in results}
    left = [case.id for case in cases if case.id not in measured]
    what = f"{len(left)} of {counted(len(cases), 'case')} not measured"
    decided = [result for result in results if result.ended and not result.verdict.whole]
    lines = [f"{result.case.id}: {result.ended}" for result in decided]
    return [*lines, *([f"interrupted: {what}: {listed(left, 3)}"] if left else [])]


class FailureText:
    """A verdict as pytest prints it among its failures. With a string or a crash in its place,
    pytest's summary would repeat the first words.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def toterminal(self, writer: Any) -> None:
        """Print the verdict. pytest calls this with its terminal writer."""
        writer.line(self._text)


def write_summary(reporter: pytest.TerminalReporter, run: terminal_summary.ShownRun) -> None:
    """Write the table, and what to do about each case that did not pass."""
    reporter.section("performance")
    width = reporter._tw.fullwidth if reporter.isatty else 0  # 0: a log may have any width
    for text, markup in terminal_summary.lines(run, width):
        reporter.line(printable(text), **markup)
    for line in run.annotations:  # printable() breaks them up
        reporter.line(line)
