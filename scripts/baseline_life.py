"""Write docs/baseline-life.md: what real commands do to a baseline, in a repository made for it.

    python scripts/baseline_life.py              writes the page anew
    python scripts/baseline_life.py PATH         writes it elsewhere

What is measured is made up here, since a page should not need an hour on a GPU; what the commands
answer and what git shows is not.
"""

import contextlib
import io
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from stepguard import Case  # noqa: E402
from stepguard.cli import main as cli  # noqa: E402
from stepguard.core.evidence import (  # noqa: E402
    Block,
    Counts,
    Evidence,
    Fault,
    Launch,
    to_json,
)
from stepguard.core.fingerprint import Fingerprint  # noqa: E402
from stepguard.core.reasons import Reason  # noqa: E402

PAGE = ROOT / "docs" / "baseline-life.md"
CASE = Case(
    "124m-bf16",
    "model.workloads:train_step",
    {"size": "124m", "batch": 64},
    gates=("step_ms", "flops_per_step", "graph_breaks", "peak_allocated_bytes"),
)
COUNTS = {"flops_per_step": 112_074_000_000_000, "graph_breaks": 0}
PEAK = 45_000_000_000
LEVELS_MS = (252.5, 252.9, 252.1, 252.7, 252.4)  # of the first five recordings
SPREAD = (0.999, 1.0, 1.001)  # of a sound run's three launches
H200 = Fingerprint(
    device_name="NVIDIA H200",
    device_uuid="GPU-6f2c1a90",
    torch="2.13.0",
    cuda="13.0",
    cudnn="91900",
    triton="3.6.0",
    driver="580.159",
    arch="x86_64",
)


class Life:
    """A small repository, and the page about what happens in it."""

    def __init__(self, folder: Path) -> None:
        self.repository, self.artifacts = folder / "repository", folder / "artifacts"
        self.repository.mkdir()
        self.page: list[str] = []
        self._runs = 0
        (self.repository / "model.py").write_text("# the training step\n")
        self._git("init", "-q", "-b", "main")
        self.commit("The training step")

    def say(self, text: str) -> None:
        """Add a paragraph or a heading."""
        self.page += [*textwrap.wrap(text, 100, break_on_hyphens=False), ""]

    def measured(
        self,
        ms: float,
        peak: int = PEAK,
        dirty: tuple[str, ...] = (),
        spread: tuple[float, ...] = SPREAD,
        faults: tuple[Fault, ...] = (),
    ) -> str:
        """Write evidence of a run at this level, as CI keeps it, and return its folder."""
        self._runs += 1
        case = CASE.as_dict()
        evidence = Evidence(
            case_id="train_step[124m-bf16]",
            case=case,
            date=f"2026-11-{self._runs:02d}T09:00:00+00:00",
            commit=self._git("rev-parse", "HEAD").strip(),
            dirty=dirty,
            command="pytest perf_tests",
            planned_launches=CASE.launches,
            gates=CASE.gates,
            fingerprint=H200,
            launches=tuple(_launch(i, ms * factor) for i, factor in enumerate(spread, start=1)),
            counts=Counts(COUNTS | {"peak_allocated_bytes": peak}),
            faults=faults,
            tokens_per_step=131_072,
        )
        path = self.artifacts / f"run-{self._runs}" / "train_step-124m-bf16" / "evidence.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(to_json(evidence))
        return f"../artifacts/run-{self._runs}"

    def stepguard(self, *arguments: str) -> None:
        """Run a command of stepguard and show it with its output."""
        said, status = self._stepguard(arguments)
        shown = f"$ python -m stepguard {shlex.join(arguments)}\n{said}"
        self._fence("console", shown + (f"(exit status {status})\n" if status else ""))

    def quietly(self, *arguments: str) -> None:
        """Run a command of stepguard that has to work."""
        said, status = self._stepguard(arguments)
        if status:
            raise SystemExit(f"baseline_life: {shlex.join(arguments)}: {said}")

    def refused(self, *arguments: str) -> None:
        """Run ``accept`` without showing it. It has to refuse what it is given."""
        said, status = self._stepguard(("accept", *arguments, "--reason", "right all the same"))
        if not status or ": not recorded, " not in said:
            raise SystemExit(f"baseline_life: {shlex.join(arguments)}: {said}")

    def waived(self, *arguments: str) -> None:
        """Run ``judge`` without showing it. The case has to pass by its waiver."""
        said, status = self._stepguard(("judge", *arguments))
        if status or "SLOWER (waived until " not in said:
            raise SystemExit(f"baseline_life: {shlex.join(arguments)}: {said}")

    def unchanged(self) -> bool:
        """Return whether git sees no change."""
        return not self._git("status", "--porcelain")

    def diff(self, *options: str) -> None:
        """Show the diff that a reviewer sees."""
        self._git("add", "--intent-to-add", "--all")
        self._fence("diff", self._git("diff", "--no-color", *options))

    def commit(self, message: str) -> None:
        """Commit all changes."""
        self._git("add", "--all")
        self._git("commit", "-q", "-m", message)

    def _fence(self, language: str, text: str) -> None:
        self.page += [f"```{language}", text.rstrip("\n"), "```", ""]

    def _git(self, *arguments: str) -> str:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(["git", *arguments], cwd=self.repository, check=False, **pipes)
        if done.returncode:
            raise SystemExit(f"git {shlex.join(arguments)}: {done.stdout}")
        return done.stdout

    def _stepguard(self, arguments: Sequence[str]) -> tuple[str, int]:
        """Return what a command of stepguard prints, and its status."""
        said = io.StringIO()
        with contextlib.chdir(self.repository):
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                status = cli.main([*arguments])
        return said.getvalue(), status


def be_the_same() -> None:
    """Make author and date of commits always the same, and settings of the user's none."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]
    os.environ["GIT_CONFIG_GLOBAL"] = "/dev/null"
    # As in an environment that is active: a command that is printed then begins with "python".
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for role in ("AUTHOR", "COMMITTER"):
        own = {"NAME": "A. Author", "EMAIL": "author@example.org"}
        own |= {"DATE": "2026-11-01T08:00:00+00:00"}
        os.environ.update({f"GIT_{role}_{name}": value for name, value in own.items()})


def _launch(index: int, ms: float) -> Launch:
    ms = round(ms, 4)
    wall = (round(8 * ms, 4),)
    block = Block(steps=8, wall_ms=wall, events_ms=wall, step_ms=(ms,) * 8)
    return Launch(index, (block,) * 3, 30.0, 6.0, 24, "", 60.0)


def begin(life: Life) -> None:
    """The first recording."""
    life.say("# A baseline's life")
    life.say(
        "What git shows of a change of `baselines/`. What to ask then: [how a diff reads]"
        "(../baselines/README.md#how-a-diff-reads). `python scripts/baseline_life.py` makes this "
        "page. Commands and diffs are real, measurements made up. The case gates four metrics."
    )
    life.say("## The first recording")
    life.say(
        "A case without a baseline is `NO BASELINE`. Its evidence, here from CI, becomes the first "
        "recording."
    )
    life.stepguard("accept", "--evidence", life.measured(LEVELS_MS[0]))
    life.diff("--stat")
    life.commit("Record train_step")


def grow(life: Life) -> None:
    """Four more recordings."""
    life.say("## One more recording")
    life.say(
        "Runs that are `same` are added, one a commit, and no other line changes. Another card "
        "shows in `device_uuid`, another driver in `driver`. The fifth:"
    )
    for number, ms in enumerate(LEVELS_MS[1:], start=2):
        folder = life.measured(ms)
        if number < len(LEVELS_MS):
            life.quietly("accept", "--evidence", folder)
            life.commit(f"Recording {number}")
    life.stepguard("accept", "--evidence", folder)
    life.diff("--stat")
    life.commit("Recording 5")


def slow_down(life: Life) -> None:
    """An accepted slowdown."""
    life.say("## An accepted slowdown")
    life.say(
        "Another commit keeps less in memory and computes it again: 3 % slower, 9 GB less. Without "
        "a reason nothing is recorded. With one a new level begins: one more of the case's "
        "`epochs`. Later runs are compared with the newest alone."
    )
    (life.repository / "model.py").write_text("# the training step, activations computed again\n")
    life.commit("Compute activations again")
    folder = life.measured(260.1, PEAK - 9_000_000_000)
    reason = "9 GB less for 3 % of time: batch 96 fits now"
    life.stepguard("accept", "--evidence", folder, "--reason", reason)
    life.diff()
    life.commit("Accept the slower step")


def refuse(life: Life) -> None:
    """A recording that is refused."""
    life.say("## A refused recording")
    life.say(
        "A tree with uncommitted changes never becomes a baseline. [More is refused]"
        "(method.md#what-is-never-recorded). Git then sees no change."
    )
    dirty = life.measured(260.0, PEAK - 9_000_000_000, dirty=("model.py",))
    life.stepguard("accept", "--evidence", dirty, "--reason", "it is right all the same")
    hot = Fault(Reason.THROTTLED.name, "4 blocks could not be used: power brake", "", "launch 2")
    life.refused("--evidence", life.measured(260.0, PEAK - 9_000_000_000, faults=(hot,)))
    if not life.unchanged():
        raise SystemExit("baseline_life: a refused recording changed a file")


def waive(life: Life) -> None:
    """A waiver."""
    life.say("## A waiver")
    life.say(
        "A library's new version makes the step slower, and its next one will repair that. So it "
        "is [waived](../baselines/README.md#permissions), not accepted: for 60 days, up to 6 %, a "
        "little more than was measured."
    )
    slower = life.measured(273.5, PEAK - 9_000_000_000)
    name, why = "train_step[124m-bf16]", "library issue 1234, fixed in its next version"
    arguments = ("--limit-pct", "6", "--reason", why, "--days", "60", "--who", "A. Author")
    life.stepguard("waive", name, "step_ms", *arguments)
    life.diff()
    life.say("The case passes until then, and every run says why.")
    life.waived("--evidence", slower)


def main(arguments: list[str]) -> int:
    """Run all chapters and write the page."""
    be_the_same()
    with tempfile.TemporaryDirectory(prefix="stepguard-life-") as name:
        life = Life(Path(name))
        for chapter in (begin, grow, slow_down, refuse, waive):
            chapter(life)
    target = Path(arguments[0]) if arguments else PAGE
    target.write_text("\n".join(life.page).rstrip() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
