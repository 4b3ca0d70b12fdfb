"""The documents are true: commands, options, folders, reasons, metrics, the examples.

pytest tests/test_readme.py
"""

import ast
import dataclasses
import importlib
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from lab_commands import add_lab
from short_launches import BUSY_LIMIT_S, CONFTEST

from stepguard import Case
from stepguard.cli.main import main as stepguard_main
from stepguard.core.device import CPU, GPU
from stepguard.core.margins import ALPHA, margins_of
from stepguard.core.metrics import METRICS
from stepguard.core.recording import KEPT_RECORDINGS
from stepguard.core.run_document import SCHEMA
from stepguard.core.status import Status
from stepguard.judge.compare_metric import OTHER_CARD_PCT, OWN_CARD_PCT
from stepguard.judge.compare_profiles import IDLE_SHARE
from stepguard.judge.kernel_times import LEAST_SCATTER_PCT, SCATTER_SHARES
from stepguard.judge.pair_statistics import RUN_ALPHA, SEQUENTIAL_PLAN
from stepguard.judge.time_rules import KERNEL_MARGINS, LARGE_PCT, SLOWER_TIMES, WITHIN_PCT
from stepguard.judge.waiver_rules import MAX_DAYS, MAX_PCT
from stepguard.measure.warm_up import PAIR_PROTOCOLS
from stepguard_lab.change_points import LEAST_CHANGE_PCT, LEAST_POINTS, LEAST_SERIES

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
YOUR_MODEL = (ROOT / "docs" / "your-model.md").read_text()
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), ROOT / "baselines" / "README.md",
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "model", "lab", "lab/sweeps")),
    *sorted(ROOT.glob("lab/docs/*.md"))]  # fmt: skip


@pytest.fixture(autouse=True)
def lab(monkeypatch, tmp_path_factory):
    """The lab's commands, which pages name, too."""
    add_lab(monkeypatch, tmp_path_factory.mktemp("installed"))


def run(*arguments, cwd):
    """pytest or git in ``cwd``, with this tree's stepguard and nothing of the outer pytest."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env["PYTHONPATH"] = f"{ROOT}:{ROOT / 'tests'}"
    return subprocess.run(
        arguments,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=BUSY_LIMIT_S,
        check=False,
    )


def blocks(language, text=README):
    """Return the fenced blocks of a document in a language."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for found, block in fences if found == language]


def test_the_first_example_was_measured():
    """Its command, its line and its seconds are those of a kept verdict; no line scrolls."""
    (figures,) = re.findall(r"\[figures\]\(([^)]+)\)", README)
    typed, headline = blocks("console")[0].splitlines()
    runs = json.loads((ROOT / figures).read_text())["runs"]
    each = ((run["wall_s"], result) for run in runs for result in run["results"])
    wall_s, said = next(one for one in each if one[1]["headline"] == headline)
    assert typed == f"$ {said['command']}" and len(typed) < 100 and len(headline) < 100
    assert f"took {wall_s:.0f} s" in README


LOOKS = [str(look.pairs) for look in SEQUENTIAL_PLAN]
GPU_PAIRS, CPU_PAIRS = PAIR_PROTOCOLS[GPU], PAIR_PROTOCOLS[CPU]
KERNELS, USUAL, ON_CPU = KERNEL_MARGINS, margins_of((), GPU), margins_of((), CPU)
DEMO = runpy.run_path(str(ROOT / "scripts" / "demo.py"), run_name="demo")
BEFORE = (ROOT / DEMO["TARGET"]).read_text().partition(DEMO["ANCHOR"])[0]
SCATTER = {kind: f"{100 * share:g} %" for kind, share in SCATTER_SHARES.items()}
CLAIMS = {
    "README.md": (
        f"{OWN_CARD_PCT:g} % on a recorded card, {OTHER_CARD_PCT:g} % on another",
        f"{USUAL.ignore_pct:g} %, kernels alone {KERNELS.ignore_pct:g} %, if pairs show it; "
        f"{USUAL.matter_pct:g} % is always",
    ),
    "baselines/README.md": (f"at most {MAX_DAYS} days ahead", f"It is at most {MAX_PCT}."),
    "docs/host-syncs.md": (f"{DEMO['TARGET']}:{BEFORE.count(chr(10)) + 2}), forward",),
    "docs/judge.md": (
        f"{KERNELS.ignore_pct:g} and {KERNELS.matter_pct:g} % of a step",
        f"{SCATTER['Triton']} (Triton), {SCATTER['GEMM']} (GEMM, attention), {SCATTER['other']}",
        f"{LEAST_SCATTER_PCT:g} % of a step; eight",
        f"begins beyond {LARGE_PCT:g} %",
        f"within {WITHIN_PCT:g} % / sqrt(n)",
        f"idle for at most {100 * IDLE_SHARE:g} % of the step",
        f"at {', '.join(LOOKS[:-1])} and {LOOKS[-1]} pairs",
        f"margin are {USUAL.ignore_pct:g} and {USUAL.matter_pct:g} %, on a CPU that gates its time "
        f"{ON_CPU.ignore_pct:g} and {ON_CPU.matter_pct:g} %",
        f"{GPU_PAIRS.warmup_min_s:g} s (CPU: {CPU_PAIRS.warmup_min_s:g} s)",
        f"of {GPU_PAIRS.block_s:g} s a side (CPU: {CPU_PAIRS.block_s:g} s), behind "
        f"{GPU_PAIRS.lead_s:g} s untimed (CPU: {CPU_PAIRS.lead_s:g} s)",
        f"takes {SLOWER_TIMES:g} times",
        f"{OWN_CARD_PCT:g} % beyond the mean of this card's",
        f"{OTHER_CARD_PCT:g} % beyond the mean of other",
        f"level is {100 * ALPHA:g} %; of more than ten, an equal share of {100 * RUN_ALPHA:g} %",
    ),
    "docs/method.md": (f"An epoch keeps {KEPT_RECORDINGS} recordings",),
    "docs/run-document.md": (f"| `schema` | {SCHEMA}; ",),
    "lab/docs/history.md": (
        f"below {LEAST_CHANGE_PCT[GPU]:g} % on a GPU, or {LEAST_CHANGE_PCT[CPU]:g} % on a CPU",
        f"at least {LEAST_SERIES} points, a level at least {LEAST_POINTS}",
    ),
}


@pytest.mark.parametrize("page", CLAIMS)
def test_a_page_has_the_numbers_of_the_code(page):
    """The rules' limits, and lines and formats that change with the code."""
    text = " ".join((ROOT / page).read_text().split())
    assert [claim for claim in CLAIMS[page] if claim not in text] == []


def test_seconds_are_those_of_the_figures():
    """Of the page of measurements, by the file that a row or its section links; of the README."""
    page = (ROOT / "docs" / "measurements.md").read_text()
    section = page.partition("## Time that a run takes")[2].partition("\n## ")[0]
    (usual, *_) = re.findall(r"\(\.\./(\S+\.json)\)", section)
    known = set()
    for row in re.findall(r"^\| .*\d.*$", section, re.MULTILINE):
        files = {usual, *re.findall(r"\(\.\./(\S+\.json)\)", row)}
        walls = {str(int(wall + 0.5)) for file in files for wall in walls_of(ROOT / file)}
        seconds = set(re.findall(r"\b\d+\b", re.sub(r"\([^)]*\)", "", row.split("|")[-2])))
        assert seconds and seconds <= walls, row
        known |= seconds
    said = re.findall(r"(\d+)(?: to (\d+))?(?: s of an H200)? for (?:a train|three)", README)
    assert len(said) == 3 and {one for pair in said for one in pair} <= known | {""}


def walls_of(path):
    """Yield each run's seconds in a file of figures."""
    parts = [json.loads(path.read_text())]
    while parts:
        part = parts.pop()
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
        yield from ([part["wall_s"]] if isinstance(part, dict) and "wall_s" in part else [])


def test_kept_studies_and_cards_are_there():
    """What a page names in an earlier commit, and the card of an example."""
    texts = "\n".join(path.read_text() for path in DOCUMENTS)
    named = set(re.findall(r"\b[0-9a-f]{8}:[a-z]\w*(?:/\w+)*(?:\.md)?", texts))
    if run("git", "cat-file", "-e", "96e72680", cwd=ROOT).returncode == 0:  # else no whole clone
        gone = [one for one in named if run("git", "cat-file", "-e", one, cwd=ROOT).returncode]
        assert [one for one in gone if "NAME" not in one] == []
    (card,) = set(re.findall(r"FILE:(GPU-[0-9a-f]+)", texts))
    assert card in (ROOT / "baselines" / "h200x1.json").read_text()


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_is_documented(metric):
    """A row each, with the kind that the table of metrics gives it."""
    method = (ROOT / "docs" / "method.md").read_text()
    row = next((line for line in method.splitlines() if line.startswith(f"| `{metric}` |")), "")
    role = METRICS[metric].role
    assert f"| {METRICS[metric].kind}{', ' + role if role else ''} |" in row


@pytest.mark.parametrize("status", list(Status))
def test_every_verdict_stands_in_the_readme_with_its_outcome(status):
    """The table of verdicts says what pytest will."""
    row = next(line for line in README.splitlines() if line.startswith(f"| `{status.value}` |"))
    assert row.split("|")[3].strip().startswith(status.outcome)


def test_pages_name_options_that_pytest_offers(pytester):
    """None is invented, on any page."""
    shown = str(pytester.runpytest_inprocess("-p", "stepguard.plugin", "--help").stdout)
    offered = set(re.findall(r"^  (--perf-[a-z-]+)", shown, re.MULTILINE))
    texts = [path.read_text() for path in DOCUMENTS]
    named = {name for text in texts for name in re.findall(r"--perf-[a-z]+(?:-[a-z]+)*", text)}
    assert named and named <= offered


def help_of(main, monkeypatch, capsys, *arguments):
    """Return what a command line prints for ``--help``."""
    monkeypatch.setattr(sys, "argv", ["command", *arguments, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_lab_s_table_has_its_commands(monkeypatch, capsys):
    """No command missing, none invented; and every option that a row names is the command's."""
    lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    section = (ROOT / "lab" / "README.md").read_text().partition("\n## Commands\n")[2]
    rows = re.findall(r"^(\| `([a-z-]+)\b.*)$", section.partition("\n## ")[0], re.MULTILINE)
    rows = [(line, command) for line, command in rows if command != "python"]
    assert {command for _, command in rows} == lab["entry-points"]["stepguard.commands"].keys()
    for line, command in rows:
        helped = help_of(stepguard_main, monkeypatch, capsys, command)
        offered = set(re.findall(r"--[a-z-]+", helped))
        assert set(re.findall(r"(?<!\w)--[a-z-]+", line)) <= offered


def test_the_table_of_a_cases_fields_is_the_class():
    """All of them, in their order; a default that is one plain value is the one it has."""
    table = YOUR_MODEL.partition("| field | default |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE)
    fields = [field for field in dataclasses.fields(Case) if field.init]
    assert [name for name, _ in rows] == [field.name for field in fields]
    plain = (int, float, bool, str)
    said = {name: default.strip("`").strip('"') for name, default in rows}
    defaults = {f.name: f.default for f in fields if isinstance(f.default, plain)}
    assert len(defaults) == 6
    assert {name: said[name] for name in defaults} == {
        name: str(int(value) if isinstance(value, float) else value)
        for name, value in defaults.items()
    }


def test_the_readmes_tree_is_the_folders():
    """All of them, down to those of stepguard/; it is drawn with two spaces a level."""
    (tree,) = [block for block in blocks("") if block.startswith("model/")]
    drawn, folders = set(), []
    for line in tree.splitlines():
        name = line.split()[0]
        del folders[(len(line) - len(line.lstrip())) // 2 :]
        folders.append(name.rstrip("/"))
        drawn.add("/".join(folders))
    tracked = run("git", "ls-files", cwd=ROOT).stdout.split()
    parts = [path.split("/")[:-1] for path in tracked]
    there = {part[0] for part in parts if part and not part[0].startswith(".")}
    there |= {f"stepguard/{part[1]}" for part in parts if part[:1] == ["stepguard"] and part[1:]}
    assert drawn == there


def test_what_to_read_first_is_there():
    """The files that the README names."""
    _, _, named = README.partition("\nRead first: ")
    paths = re.findall(r"`([\w/]+\.py)`", named)
    assert len(paths) == 4 and all((ROOT / path).is_file() for path in paths)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    """The file of a relative one is there, and so is the heading."""
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", document.read_text()):
        if target.startswith("https://"):
            continue
        found = document.parent / target if target else document
        assert found.exists(), target
        if heading:
            assert heading in anchors(found.read_text()), f"{target}#{heading}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_are_whole(document):
    """The second line of each table is its dashes: after an empty line, rows would be text."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert re.fullmatch(r"\|[ :|-]+\|", table.split("\n")[1]), table


def anchors(text):
    """Return the anchors that a page's headings have on GitHub."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def commands_of_the_benchmarks():
    """Return the options that each module is called with, over all documents."""
    found: dict[str, set[str]] = {}
    for document in DOCUMENTS:
        text = document.read_text().replace("\\\n", " ")
        for module, rest in re.findall(r"python -m (benchmarks\.[\w.]+)([^`\n]*)", text):
            found.setdefault(module, set()).update(re.findall(r"(?<!\S)--[a-z-]+", rest))
    return sorted(found.items())


@pytest.mark.parametrize(("module", "options"), commands_of_the_benchmarks())
def test_the_commands_of_the_benchmarks_are_there(module, options, monkeypatch, capsys):
    """A page's command names a module, and each of its options is one of the module's."""
    helped = help_of(importlib.import_module(module).main, monkeypatch, capsys)
    assert options <= set(re.findall(r"--[a-z-]+", helped))


def commands_of_stepguard():
    """Return the command lines on any page that begin with stepguard."""
    texts = [path.read_text().replace("\\\n", " ") for path in DOCUMENTS]
    found = re.findall(r"python3? -m stepguard ([a-z][a-z-]*)([^#`\n|]*)", "\n".join(texts))
    return sorted({(command, rest.partition(" -- ")[0]) for command, rest in found})


@pytest.mark.parametrize(("command", "rest"), commands_of_stepguard())
def test_the_commands_of_stepguard_are_there(command, rest, monkeypatch, capsys):
    """An example's command exists, and each of its options is one of the command's."""
    helped = help_of(stepguard_main, monkeypatch, capsys, command)
    options = shlex.split(rest, posix=True)
    assert {word.partition("=")[0] for word in options if word.startswith("--")} <= set(
        re.findall(r"--[a-z-]+", helped)
    )


def test_a_script_of_ones_own_takes_five_lines():
    """From the installation to the comparison with main."""
    lines = next(block for block in blocks("sh") if "-- train.py" in block).splitlines()
    assert len(lines) == 5, lines


def test_make_knows_the_commands_of_the_readme():
    """Every "make something" is a target."""
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make ([a-z]+)|`make ([a-z]+)", README, re.MULTILINE)):
        assert re.search(rf"^{''.join(target)}:.*##", makefile, re.MULTILINE), target


def test_the_readmes_own_model_records_and_is_then_the_same(tmp_path):
    """The example and that of several ranks, in an empty repository, without a GPU."""
    for block in blocks("python") + blocks("python", YOUR_MODEL):
        path = tmp_path / re.match(r"# ([\w/.]+)", block).group(1)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(block + "\n\n")
    (settings,) = blocks("ini", YOUR_MODEL)
    (tmp_path / "pytest.ini").write_text(settings)
    (tmp_path / ".gitignore").write_text(".stepguard/\n__pycache__/\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    run("git", "init", "--quiet", cwd=tmp_path)
    run("git", "add", ".", cwd=tmp_path)
    author = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    committed = run("git", *author, "commit", "--quiet", "-m", "a model", cwd=tmp_path)
    assert committed.returncode == 0, committed.stderr
    pytest_command = (sys.executable, "-m", "pytest", "-m", "smoke")
    pytest_command += ("-p", "no:cacheprovider", "perf_tests")
    recorded = run(*pytest_command, "--perf-update-new", cwd=tmp_path)
    assert "first recording in" in recorded.stdout, recorded.stdout
    assert (tmp_path / "baselines" / "cpu.json").is_file()
    again = run(*pytest_command, cwd=tmp_path)
    assert again.returncode == 0, again.stdout
    assert "2 same" in again.stdout


def test_messages_name_no_page_that_an_installation_lacks():
    """docs/ is not installed: a message says itself what to do."""
    for path in sorted((ROOT / "stepguard").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        # Docstrings are expressions, and no messages.
        quiet = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [n for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        named = [n.lineno for n in texts if "docs/" in n.value and id(n) not in quiet]
        assert not named, f"{path.relative_to(ROOT)}, lines {named}"
