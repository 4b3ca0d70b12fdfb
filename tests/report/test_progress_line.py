"""The progress line: what it says, and that it leaves a terminal as it found it."""

import re

import pytest

from stepguard.report import progress_line
from stepguard.report.progress_line import CLEAR, Display, ProgressLine, expected_s


class Terminal:
    """A terminal of so many columns that obeys what the progress line writes, and a clock that a
    test moves.
    """

    def __init__(self, monkeypatch, width=80):
        self.now_s, self.width, self.written = 1000.0, width, []
        self.rows, self.column = [""], 0
        self.row = 0
        monkeypatch.setattr(progress_line, "time", self)

    def monotonic(self):
        return self.now_s

    def write(self, text):
        """Take what a program writes."""
        self.written.append(text)
        for part in re.findall(r"\x1b\[\d*[KAC]|.|\n", text):
            self._take(part)

    def _take(self, part):
        if part == "\r":
            self.column = 0
        elif part == "\n":
            self.row, self.column = self.row + 1, 0
            self.rows += [""] if self.row == len(self.rows) else []
        elif part == CLEAR:
            self.rows[self.row] = self.rows[self.row][: self.column]
        elif part.endswith("A"):
            self.row -= 1
        elif part.endswith("C"):
            self.column += int(part[2:-1])
        else:
            assert self.column < self.width, "it would wrap"
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + part + line[self.column + 1 :]
            self.column += 1

    @property
    def shown(self):
        """The progress line as it is read now."""
        return self.rows[self.row].rstrip()

    def left(self):
        """The seconds left that the line names."""
        minutes, seconds = re.search(r"(\d+):(\d\d) left", self.shown).groups()
        return 60 * int(minutes) + int(seconds)

    def line(self, cases, last_s=None, terminal=True, verbose=False):
        """A progress line on it, of cases and their devices."""
        screen = Display(self.write, terminal, lambda: self.width, lambda: self.column)
        return ProgressLine(screen, verbose, dict(cases), last_s or {})


@pytest.fixture
def screen(monkeypatch):
    """A terminal of 80 columns."""
    return Terminal(monkeypatch)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("before", ["", "perf_tests/test_forward.py ", "x" * 130])
def test_what_was_on_the_screen_stays(monkeypatch, width, before):
    """pytest's own line is whole afterwards, goes on where it was, and nothing else is left."""
    screen, plain = Terminal(monkeypatch, width), Terminal(monkeypatch, width)
    for text in ("collected 2 items\n", *re.findall(f".{{1,{width}}}", before)):
        for one in (screen, plain):
            one.write("\n" if one.column == one.width else "")
            one.write(text)
    line = screen.line(
        [("train_step[124m-bf16-compiled]", "cuda"), ("b", "cuda")],
        {"train_step[124m-bf16-compiled]": 60.0},
    )
    for case in ("train_step[124m-bf16-compiled]", "b"):
        line.begin(case)
        for text in ("launch 1: build and first step", "launch 1: block 1 of 3", "end"):
            line.stage(text)
            screen.now_s += 7
        line.end()
        for one in (screen, plain):
            one.write(".")
    assert [row.rstrip() for row in screen.rows if row.strip()] == plain.rows
    assert (screen.row, screen.column) == (plain.row, plain.column)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("stage", ["launch 1: build and first step", "launch 1: block 1 of 3"])
def test_it_says_case_stage_and_time_in_whole_words(monkeypatch, width, stage):
    """Which case of how many, what it does, and how long it still takes, at any usual width."""
    screen = Terminal(monkeypatch, width)
    line = screen.line(
        [("train_step[124m-bf16-compiled]", "cuda"), ("b", "cuda")],
        {"train_step[124m-bf16-compiled]": 60.0, "b": 65.0},
    )
    line.begin("train_step[124m-bf16-compiled]")
    line.stage(stage)
    assert screen.shown.startswith("[1/2] trai")
    assert f": {stage}  " in screen.shown and screen.left() == 125
    screen.width = 200  # the window is resized
    line.stage(stage)
    assert len(screen.shown) == 199


@pytest.mark.parametrize("width", [2, 10, 20, 28, 40, 80, 200])
@pytest.mark.parametrize("text", ["start", "x" * 300])
def test_the_progress_line_never_wraps(monkeypatch, width, text):
    """However narrow the terminal or long the text, the line stays within it, rewritten whole."""
    screen = Terminal(monkeypatch, width)
    line = screen.line([("train_step[124m-bf16-compiled]", "cuda")])
    line.begin("train_step[124m-bf16-compiled]")
    line.stage(text)
    assert len(screen.shown) <= width - 1
    screen.now_s += 123
    line.stage(text)
    assert len(screen.shown) <= width - 1
    if width >= 80:
        assert " 123 s  " in screen.shown, "a long text gives way to its seconds"
    line.end()
    assert screen.rows == [""]


def test_the_progress_line_counts_down(screen):
    """The time left falls with the clock, from what the cases took the last time."""
    line = screen.line([("a", "cuda"), ("b", "cuda")], {"a": 60.0, "b": 30.0})
    line.begin("a")
    line.stage("warm-up")
    assert screen.left() == 90
    assert "[1/2] a: warm-up" in screen.shown
    screen.now_s += 20
    line.stage("warm-up")
    assert screen.left() == 70 and "0:20" in screen.shown
    screen.now_s += 30
    line.end()
    line.begin("b")
    line.stage("start")
    assert screen.left() == 30
    assert "[2/2] b: start" in screen.shown
    screen.now_s += 500
    line.stage("slow today")
    assert screen.shown.endswith("  8:20, longer than expected (0:30)")


def test_a_case_that_takes_longer_says_so(screen):
    """It does not count down a second for minutes; what is to come is not eaten up by it."""
    screen.width = 100
    line = screen.line(
        [("a", "cuda"), ("c", "cpu"), ("b", "cuda")], {"a": 12.0, "c": 20.0, "b": 90.0}
    )
    line.begin("a")
    screen.now_s += 52
    line.stage("build and first step")
    tail = "  0:52, longer than expected (0:12), then about 1:50"
    assert screen.shown.endswith(tail)
    line.end()
    line.begin("c")
    screen.now_s += 25
    line.stage("start")
    assert screen.shown.endswith("  0:25, longer than expected (0:20), then about 1:30")


def test_pairs_say_up_to_when_they_may_go_on(screen):
    """Where nothing is known of them, or they have gone on for longer than was expected."""
    line = screen.line([("a", "cuda"), ("b", "cuda")], {"b": 60.0})
    line.begin("a", 900.0)
    screen.now_s += 52
    line.stage("pair 1 head: block 1 of 2")
    assert screen.shown.endswith("  0:52, up to about 15:00")
    line.end()
    line.begin("b", 900.0)
    line.stage("start")
    assert screen.left() == 60
    screen.now_s += 61
    line.stage("pair 4 head: block 1 of 2")
    assert screen.shown.endswith("  1:01, up to about 15:00")
    log = screen.line([("a", "cuda")], terminal=False)
    log.begin("a", 900.0)
    assert screen.written[-1] == "\n[1/1] a: up to about 15:00\n"


@pytest.mark.parametrize("most_s", [None, 900.0])
def test_what_is_left_follows_the_cases_that_are_done(screen, most_s):
    """Nothing is said of it before one of them is."""
    line = screen.line([(name, "cuda") for name in "abc"], terminal=False)
    left = []
    for name, took_s in zip("abc", (60.0, 70.0, 65.0), strict=True):
        line.begin(name, most_s)
        left.append(screen.written[-1].rpartition(": ")[2].strip())
        line.end()
        line.learn(name, took_s)
    first = "up to about 15:00" if most_s else "[1/3] a"
    assert left == [first, "about 2:00 left", "about 1:05 left"]


@pytest.mark.parametrize(("last_s", "took_s", "expected"), [
    ({}, {}, None),  # nothing is known
    ({}, {"b": 60.0, "c": 70.0}, 65.0),  # the mean of this run's
    ({"a": 40.0}, {}, 40.0),  # its own last time
    ({"a": 40.0}, {"b": 60.0}, 40.0),  # of b there is no last time: it may be a longer case
    ({"a": 40.0, "b": 30.0, "c": 10.0}, {"b": 60.0, "c": 20.0}, 80.0),  # all take twice as long
    ({"b": 30.0}, {"b": 60.0}, 60.0),
])  # fmt: skip
def test_what_a_case_is_expected_to_take(last_s, took_s, expected):
    """What it took the last time, at this run's pace; else the mean of this run."""
    assert expected_s("a", last_s, took_s) == expected


def test_without_a_terminal_a_case_is_a_line(screen):
    """In a log file there is one line a case, no carriage returns, and stages only with -v."""
    line = screen.line([("a", "cpu")], terminal=False)
    line.begin("a")
    line.stage("warm-up")
    line.end()
    assert screen.written == ["\n[1/1] a\n"]
    verbose = screen.line([], terminal=False, verbose=True)
    verbose.begin("a")
    verbose.stage("warm-up")
    assert screen.written[-1].endswith("warm-up\n")
    told = len(screen.written)
    screen.now_s += 5
    verbose.stage("warm-up")
    assert len(screen.written) == told, "a stage that goes on is no news in a log"


@pytest.mark.parametrize("verbose", [False, True])
def test_a_log_has_a_line_every_half_minute(screen, verbose):
    """Of a stage that goes on: case, stage, seconds, and what the pairs say so far. With -v each
    stage has a line besides, and what the pairs say is said once.
    """
    screen.width = 200
    line = screen.line([("a", "cuda")], terminal=False, verbose=verbose)
    line.begin("a")
    known = "; step_ms +0.04 [-0.12, +0.20] % over 6 pairs"
    for second in range(100):
        line.stage(f"pair 7 head: {'warm-up' if second < 50 else 'block 1 of 2'}{known}")
        screen.now_s += 1
    stages = [f"     0.0 s  pair 7 head: warm-up{known}", "    50.0 s  pair 7 head: block 1 of 2"]
    told = [
        f"    30.0 s  a: 30 s into pair 7 head: warm-up{known}",
        f"    60.0 s  a: 10 s into pair 7 head: block 1 of 2{known}",
        f"    90.0 s  a: 40 s into pair 7 head: block 1 of 2{known}",
    ]
    if verbose:
        told = [stages[0], told[0], stages[1], told[1].replace("60.0 s  a: 10", "80.0 s  a: 30")]
    assert [text.rstrip("\n") for text in screen.written[1:]] == told
