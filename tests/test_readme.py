"""The documents are true: commands, options, folders, reasons, metrics, the examples.

pytest tests/test_readme.py
"""

import ast
import dataclasses
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from lab_commands import add_lab
from short_launches import BUSY_LIMIT_S, CONFTEST

from stepguard import Case
from stepguard.cli.main import main as stepguard_main
from stepguard.core.metrics import METRICS
from stepguard.core.status import Status

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
OPTIONS = (ROOT / "docs" / "options.md").read_text()
PAGES = (OPTIONS, (ROOT / "lab" / "README.md").read_text())  # with commands
YOUR_MODEL = (ROOT / "docs" / "your-model.md").read_text()
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "baselines" / "README.md",
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "model", "lab", "lab/sweeps")),
    *sorted(ROOT.glob("lab/docs/*.md")),
]


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


def test_the_options_table_is_what_pytest_offers(pytester):
    """No option missing, none invented."""
    shown = str(pytester.runpytest_inprocess("-p", "stepguard.plugin", "--help").stdout)
    offered = set(re.findall(r"^  (--perf-[a-z-]+)", shown, re.MULTILINE))
    assert offered
    assert set(re.findall(r"^\| `(--perf-[a-z-]+)", OPTIONS, re.MULTILINE)) == offered
    named = {name for text in (README, YOUR_MODEL) for name in re.findall(r"--perf-[a-z-]+", text)}
    assert named <= offered


def help_of(main, monkeypatch, capsys, *arguments):
    """Return what a command line prints for ``--help``."""
    monkeypatch.setattr(sys, "argv", ["command", *arguments, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_commands_table_is_what_the_command_line_offers(monkeypatch, capsys):
    """No command missing, none invented; and every option that a row names is the command's."""
    shown = help_of(stepguard_main, monkeypatch, capsys)
    sections = [text.partition("\n## Commands\n")[2].partition("\n## ")[0] for text in PAGES]
    rows = re.findall(r"^(\| `([a-z-]+)\b.*)$", "".join(sections), re.MULTILINE)
    rows = [(line, command) for line, command in rows if command != "python"]
    assert {command for _, command in rows} == set(
        re.findall(r"^    ([a-z-]+)\b", shown, re.MULTILINE)
    )
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
    """Return the command lines of every shell example that begin with stepguard."""
    texts = [block for path in DOCUMENTS for block in blocks("sh", path.read_text())]
    lines = "\n".join(texts).replace("\\\n", " ").splitlines()
    found = [re.search(r"python3? -m stepguard ([a-z-]+)([^#]*)", line) for line in lines]
    return sorted({(one[1], one[2].partition(" -- ")[0]) for one in found if one})


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
