"""The command init: what it writes into projects of every kind, and when it stops."""

import ast
import configparser
import json
import subprocess
import tomllib
from types import SimpleNamespace

import pytest
import yaml
from _pytest.config.findpaths import locate_config
from builders import baseline_file, entry

from stepguard.cli import init, workload_arguments
from stepguard.cli.main import main
from stepguard.cli.workload_arguments import missing
from stepguard.storage.baseline_files import save

FACTORY = "import torch\n\n\ndef train_step(width, device, compile=True, name=''):\n    ...\n"
AUTHOR = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t"}
AUTHOR |= {
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@t",
}


class Project:
    """A repository with a factory, and what was measured in it."""

    def __init__(self, path):
        self.path, self.measured, self.gpus = path, [], []
        self.test = path / "perf_tests" / "test_train_step.py"
        (path / "my_model.py").write_text(FACTORY)
        self.git("init", "-q")

    def git(self, *arguments):
        command = ["git", "-C", str(self.path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "Begin")

    def commit_of_a_user(self):
        (self.path / "theirs.txt").write_text("")
        self.commit()
        return 1

    def recording(self):
        (self.path / "baselines").mkdir()
        (self.path / "baselines" / "cpu.json").write_text("{}")
        return 1

    def init(self, *arguments):
        return main(["init", "my_model:train_step", "width=64", *arguments])


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository without a commit yet, on a machine without a GPU; nothing is really measured."""
    for name, value in AUTHOR.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    made = Project(tmp_path)
    for module in (init, workload_arguments):
        monkeypatch.setattr(module, "visible_gpus", lambda: made.gpus)
    made.record = init._record
    monkeypatch.setattr(init, "_record", lambda *told: made.measured.append(told[-1]) or 0)
    return made


def test_a_project_is_guarded_with_one_command(project):
    """The test, the settings and the ignored files are written and committed, then it measures."""
    project.commit()
    assert project.init() == 0
    assert project.measured == ["perf_tests/test_train_step.py"]
    assert project.git("status", "--porcelain") == ""
    text = project.test.read_text()
    compile(text, "test", "exec")
    line = 'Case("cpu", "my_model:train_step", {"width": 64}, device="cpu", launches=1),'
    assert line in text
    assert (project.path / "pytest.ini").read_text() == "[pytest]\n"
    assert "__pycache__/\n" in (project.path / ".gitignore").read_text()


@pytest.mark.parametrize("plugins", [(), ("stepguard.plugin",)])
def test_without_the_plugin_it_says_what_to_install(project, capsys, monkeypatch, plugins):
    """pytest names options alone that it does not know; it may refuse others, too."""
    monkeypatch.undo()
    status = SimpleNamespace(returncode=4)
    monkeypatch.setattr(init.subprocess, "run", lambda *command, **options: status)
    monkeypatch.setattr(init.metadata, "entry_points", lambda **wanted: plugins)
    assert init._record(project.path, "python", "perf_tests/test_train_step.py") == 1
    told = capsys.readouterr().out
    assert ("-m pip install " in told) is (not plugins)
    assert ("of the project's addopts: install its plugin" in told) is bool(plugins)


@pytest.mark.parametrize("ends", ["refused", "interrupted"])
def test_after_a_failure_nothing_of_it_is_left(project, capsys, monkeypatch, ends):
    """Its commit is there before anything is measured, and gone after a failure: a test that stays
    would keep pytest red. One that is the user's is not taken back.
    """

    def interrupted(*told):
        raise KeyboardInterrupt

    project.commit()
    monkeypatch.setattr(init, "_record", project.record)
    fails = project.path.with_name("fails")
    fails.write_text("#!/bin/sh\nmkdir -p out && touch out/a out/b && exit 1\n")
    fails.chmod(0o755)
    monkeypatch.setattr(init.sys, "executable", str(fails))
    monkeypatch.setattr(init.sys, "argv", ["stepguard", "init", "my_model:train_step", "width=64"])
    begun = project.git("log", "--format=%H")
    if ends == "interrupted":
        monkeypatch.setattr(init, "_record", interrupted)
    status = project.init()
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "init has taken its commit back."
    left = "" if ends == "interrupted" else "?? out/\n"
    assert (project.git("log", "--format=%H"), project.git("status", "--short")) == (begun, left)
    if ends == "interrupted":
        assert status == 130
        return
    assert told[-5] == "The run wrote out/: outputs belong in .gitignore."
    assert status == 1 and told[-3] == "Mend what is told above, commit, then again:"
    assert told[-2].endswith(" -m stepguard init my_model:train_step width=64")


@pytest.mark.parametrize("then", ["commit_of_a_user", "recording"])
def test_a_commit_that_is_used_is_not_taken_back(project, capsys, monkeypatch, then):
    """There is a newer one, or a recording names it."""
    project.commit()
    monkeypatch.setattr(init, "_record", lambda *told: getattr(project, then)())
    assert project.init() == 1
    assert project.test.exists() and "taken" not in capsys.readouterr().out


def test_again_it_writes_nothing(project, capsys):
    """Whatever it stopped at, the command can be given again."""
    project.commit()
    project.init()
    before = project.git("log", "--oneline")
    capsys.readouterr()
    assert project.init() == 0
    assert project.git("log", "--oneline") == before and len(project.measured) == 2
    assert "wrote" not in capsys.readouterr().out


def test_without_a_commit_it_says_so_before_it_measures(project, capsys):
    """And not that there is no repository."""
    assert project.init() == 1
    told = capsys.readouterr().err
    assert "the repository has no commit yet: git add -A && git commit" in told
    assert "then again: " in told
    assert project.measured == []


def test_a_gpus_case_is_refused_where_there_is_none(project, capsys):
    """Before anything is written: nothing could be measured. With one the case is written."""
    project.commit()
    for asked in (["--device", "cuda"], ["device=cuda"]):
        assert project.init(*asked) == 2
        told = capsys.readouterr().err
        assert "shows no GPU" in told and "--device cpu" in told
    assert project.git("status", "--porcelain") == "" and project.measured == []
    project.gpus.append("an H100")
    assert project.init("device=cuda") == 0
    assert 'Case("cuda", "my_model:train_step", {"width": 64}, device="cuda")' in (
        project.test.read_text()
    )


@pytest.mark.parametrize("data", ["data", "./data/", "data/x.bin"])
def test_untracked_data_of_the_case_is_ignored_from_now_on(project, data):
    """It is named as what git ignores, so init tells git. Data that git tracks is left to it."""
    project.commit()
    (project.path / "data").mkdir()
    (project.path / "data" / "x.bin").write_text("")
    (project.path / "__pycache__").mkdir()
    (project.path / "__pycache__" / "my_model.pyc").write_text("")
    assert project.init("--data", data) == 0 and len(project.measured) == 1
    assert project.git("status", "--porcelain") == ""
    ignored = project.git("ls-files", "--others", "--ignored", "--exclude-standard")
    assert sorted(ignored.split()) == ["__pycache__/my_model.pyc", "data/x.bin"]


def test_files_that_are_there_keep_their_kind(project):
    """Their line ends, modes and encodings, and a link stays one."""
    real = project.path / "settings.cfg"
    real.write_bytes(b"[metadata]\r\nname = x\r\n")
    real.chmod(0o755)
    (project.path / "setup.cfg").symlink_to("settings.cfg")
    (project.path / ".gitignore").write_bytes(b"caf\xe9")
    project.commit()
    assert project.init() == 0
    assert real.read_bytes() == b"[metadata]\r\nname = x\r\n\r\n[tool:pytest]\r\n"
    assert real.stat().st_mode & 0o777 == 0o755 and (project.path / "setup.cfg").is_symlink()
    assert (project.path / ".gitignore").read_bytes() == b"caf\xe9\n__pycache__/\n"
    assert project.git("status", "--porcelain") == ""


@pytest.mark.parametrize("there", ["perf_tests", "pytest.ini", "a name"])
def test_what_cannot_be_written_is_said(project, capsys, there):
    """In one line."""
    if there == "perf_tests":
        (project.path / there).write_text("")
    elif there == "pytest.ini":
        (project.path / there).mkdir()
        (project.path / there / "x").write_text("")
    project.commit()
    script = ["--", f"{'a' * 300}.py"] if there == "a name" else ["my_model:train_step", "width=64"]
    assert main(["init", *script]) == 1
    told = capsys.readouterr().err
    assert told.startswith("stepguard: ") and told.count("\n") == 1


def test_other_uncommitted_changes_are_the_users_to_commit(project, capsys):
    """Nothing of theirs is committed, nothing measured or written."""
    project.commit()
    (project.path / "my_model.py").write_text(FACTORY + "# more\n")
    project.git("add", "my_model.py")
    assert project.init() == 1
    assert "uncommitted changes (my_model.py): commit them" in capsys.readouterr().err
    assert project.measured == [] and not project.test.exists()
    project.git("commit", "-q", "-m", "More")
    assert project.init() == 0
    assert project.git("status", "--porcelain") == "" and len(project.measured) == 1


@pytest.mark.parametrize(("files", "extended"), [
    ({"pyproject.toml": "[project]\nname = 'x'\n"}, "pyproject.toml"),
    ({"setup.cfg": "[metadata]\nname = x"}, "setup.cfg"),
    ({"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-q'\n"}, None),
    ({"setup.cfg": "[tool:pytest]\naddopts = -q\n"}, None),
    ({"tox.ini": "[pytest]\naddopts = -q\n"}, None),
    ({"pytest.ini": "", "pyproject.toml": "[project]\nname = 'x'\n"}, None),
    ({"pyproject.toml": "[project]\nname='x'\n", "tox.ini": "[tox]\n"}, "pyproject.toml"),
    ({"tox.ini": "[tox]\n"}, "pytest.ini"),
])  # fmt: skip
def test_the_settings_go_where_the_project_has_them(project, files, extended):
    """Into the file that pytest reads there, behind what it has; no second one overrides it."""
    for name, text in files.items():
        (project.path / name).write_text(text)
    project.commit()
    assert project.init() == 0
    names = {*files, "pytest.ini"}
    now = {name: path.read_text() for name in names if (path := project.path / name).is_file()}
    changed = [name for name in now if now[name] != files.get(name)]
    assert changed == ([extended] if extended else [])
    assert all(now[name].startswith(text) for name, text in files.items())
    if extended == "pyproject.toml":
        assert "pytest" in tomllib.loads(now[extended])["tool"]
    elif extended == "setup.cfg":
        parser = configparser.ConfigParser()
        parser.read_string(now[extended])
        assert parser.has_section("tool:pytest")
    found = locate_config(project.path, [project.path / "perf_tests"])
    assert found[0] == project.path, "the root, where baselines/ will be"


def test_a_test_without_the_case_is_left_as_it_is_and_not_measured(project, capsys):
    """If its case has a recording, or if somebody changed it: the error says what to put in, or
    what records the other case. A case whose line a formatter broke is there.
    """
    project.commit()
    assert main(["init", "my_model:train_step", "width=46"]) == 0
    before = project.test.read_text()
    recorded = project.path / "baselines" / "cpu.json"
    save(recorded, baseline_file(cases={"train_step[cpu]": entry(), "other[cpu]": entry()}))
    project.commit()
    assert project.init() == 1
    told = capsys.readouterr().err
    line = 'Case("cpu", "my_model:train_step", {"width": 64}, device="cpu", launches=1),'
    assert f"put it in as {line} and init again; with --name NAME, if the file has" in told
    assert "pytest perf_tests/test_train_step.py --perf-update-new" in told
    assert "remove" not in told
    assert project.test.read_text() == before and len(project.measured) == 1
    save(recorded, baseline_file(cases={"other[cpu]": entry()}))
    for own in (before + "\n\nMINE = 1\n", before.replace("perf(case)", "perf(case)  # mine")):
        project.test.write_text(own)
        project.commit()
        assert project.init() == 1 and project.test.read_text() == own
    broken = line.replace(", ", ",\n    ").replace("1),", "1,\n    ),")
    project.test.write_text(before.replace("@cases(", "@cases(\n    " + broken))
    project.commit()
    assert project.init() == 0 and len(project.measured) == 2
    assert "is there, and left as it is" in capsys.readouterr().out


def test_a_test_file_without_any_case_gets_the_whole_test(project, capsys):
    """With its imports and its decorator, and no name that the file may have: what is printed can
    be added as it stands, and then it is measured.
    """
    project.test.parent.mkdir()
    own = "def test_train_step():\n    pass\n"
    project.test.write_text(own)
    project.commit()
    assert project.init() == 1
    told = capsys.readouterr()
    assert told.err.endswith("To guard the case, add the lines above to it, and init again\n")
    assert project.test.read_text() == own and not project.measured
    project.test.write_text(own + told.out)
    tree = ast.parse(project.test.read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert names == ["test_train_step", "test_speed_of_train_step"]
    assert "from stepguard.plugin import cases\n" in told.out and "\n@cases(\n" in told.out
    project.commit()
    assert project.init() == 0 and len(project.measured) == 1


def workflow_of(project):
    """The job of the workflow that init wrote."""
    return yaml.safe_load((project.path / init.WORKFLOW).read_text())["jobs"]["perf"]


def test_the_workflow_is_written_on_request(project, monkeypatch):
    """With the torch that the recording will be of, and the action at the commit that is here."""
    monkeypatch.setattr(init, "action_here", lambda: "me/stepguard@" + "a" * 40)
    project.commit()
    project.init("--ci")
    *_, torch, action = workflow_of(project)["steps"]
    assert torch["run"].startswith("pip install torch==")
    assert action == {"uses": "me/stepguard@" + "a" * 40}
    assert ".github/workflows" in project.git("ls-files")


@pytest.mark.parametrize(
    ("local", "remote", "named"),
    [("main", "", "main"), ("master", "", "master"), ("mine", "", "main"), ("main", "a/b", "a/b")],
)
def test_the_workflow_runs_on_the_main_branch(project, local, remote, named):
    """Under the name that it has: a push to another one would never be measured. GitHub keeps the
    green of a pull request that is retargeted, so that one into another branch is not judged. On a
    machine without a GPU it says how to spare the build for CUDA.
    """
    project.git("symbolic-ref", "HEAD", f"refs/heads/{local}")
    project.commit()
    if remote:
        project.git("update-ref", f"refs/remotes/origin/{remote}", "HEAD")
        project.git("symbolic-ref", "refs/remotes/origin/HEAD", f"refs/remotes/origin/{remote}")
    assert project.init("--ci") == 0
    text = (project.path / init.WORKFLOW).read_text()
    on = yaml.safe_load(text)[True]  # YAML's name of "on"
    branches = {"branches": [named]}
    assert on == {"push": branches, "pull_request": branches, "merge_group": None}
    assert init.CPU_BUILD in text and "\n\n\n" not in text


def test_on_gpus_the_workflow_asks_for_as_many(project, capsys):
    """Fewer are red. A repository that nobody knows is to be written."""
    project.gpus = ["an H200"]
    project.commit()
    project.init("--ci", "--device", "cuda", "--gpus", "2")
    *_, action = workflow_of(project)["steps"]
    assert action["with"] == {"gpus": "2"}
    assert init.CPU_BUILD not in (project.path / init.WORKFLOW).read_text()
    assert (init.ACTION in capsys.readouterr().out) == (action["uses"] == init.ACTION)


@pytest.mark.parametrize(("url", "place"), [
    ("https://github.com/me/stepguard.git", "me/stepguard"),
    ("git@github.com:me/step.guard", "me/step.guard"),
    ("https://github.com/me/stepguard/", "me/stepguard"),
    ("https://example.org/me/stepguard", ""),
    ("/somewhere/stepguard", ""),
    ("", ""),
])  # fmt: skip
def test_the_action_is_where_stepguard_came_from(url, place, monkeypatch):
    """The repository and commit of pip's installation, or of the clone, once it is pushed."""
    source = {"url": url, "vcs_info": {"commit_id": "b" * 40}}
    installed = SimpleNamespace(read_text=lambda name: json.dumps(source))
    monkeypatch.setattr(init, "git", lambda *arguments: None)
    monkeypatch.setattr(init.metadata, "distribution", lambda name: installed)
    wanted = f"{place}@{'b' * 40}" if place else init.ACTION
    assert init.action_here() == wanted
    answers = {"rev-parse": "c" * 40, "branch": "origin/main\n"}
    monkeypatch.setattr(init, "origin", lambda root: url)
    monkeypatch.setattr(
        init.metadata,
        "distribution",
        lambda name: SimpleNamespace(read_text=lambda name: None),
    )
    monkeypatch.setattr(init, "git", lambda root, command, *rest: answers[command])
    wanted = f"{place}@{'c' * 40}" if place else init.ACTION
    assert init.action_here() == wanted
    answers["branch"] = ""  # nobody else has the commit
    assert init.action_here() == init.ACTION


@pytest.mark.parametrize("there", [*init.OWNERS_FOLDERS, ""])
def test_what_judges_has_owners(project, there):
    """Those that the project has stay; the lines are added once, whoever the team is by then."""
    own = "* @me/all\n/baselines/ @me/perf\n"
    path = project.path / (there or ".github") / init.OWNERS
    if there:
        path.parent.mkdir(exist_ok=True)
        path.write_text(own)
    project.commit()
    project.init("--ci")
    text = path.read_text()
    assert text.startswith(own) if there else text.startswith("# Who must")
    owned = [line.split()[0] for line in text.splitlines() if line.startswith("/")]
    assert len(owned) == len({*owned})
    assert {"/baselines/", "/perf_tests/", "/conftest.py", "/.github/", "/pytest.ini"} <= {*owned}
    path.write_text(text.replace(init.TEAM, "@me/perf"))
    project.commit()
    project.init("--ci")
    assert path.read_text() == text.replace(init.TEAM, "@me/perf")


def test_without_a_factory_one_is_written_to_fill_in(project, capsys):
    """It runs as it is; the next command is named, and nothing is overwritten."""
    assert main(["init"]) == 0
    assert "init perf_workload:train_step" in capsys.readouterr().out
    assert missing("perf_workload:train_step", project.path) == ""
    (project.path / "perf_workload.py").write_text("# mine\n")
    assert main(["init"]) == 2
    assert (project.path / "perf_workload.py").read_text() == "# mine\n"


@pytest.mark.parametrize("typed", ["my_model", "my_model.py", "my_model.train_step"])
def test_a_factory_without_a_colon_is_refused(project, capsys, typed):
    """An error of the command line that says how one is written; of each command."""
    for command in ("init", "run"):
        assert main([command, typed]) == 2
        assert "package.module:function" in capsys.readouterr().err
    assert not project.test.exists()


@pytest.mark.parametrize("command", ["init", "run"])
@pytest.mark.parametrize(("factory", "told"), [
    ("nope:step", "there is no module nope, seen from"),
    ("my_model.inner:step", "there is no module my_model.inner, seen from"),
    ("my_model:trian_step", "my_model.py has no trian_step (did you mean train_step?)"),
    ("my_modle:step", "(did you mean my_model?)"),
])  # fmt: skip
def test_a_factory_that_is_not_there_is_found_before_anything_is_imported(
    project, capsys, command, factory, told
):
    """In no time, as an error of the command line, and before anything is written."""
    assert main([command, factory]) == 2
    assert told in capsys.readouterr().err
    assert sorted(path.name for path in project.path.iterdir()) == [".git", "my_model.py"]


@pytest.mark.parametrize("command", ["init", "run"])
def test_a_factory_in_a_folder_of_sources_is_told_how_it_is_found(project, capsys, command):
    """As ranks find it; not where the package is found and lacks the module."""
    (project.path / "src" / "mygpt").mkdir(parents=True)
    assert main([command, "mygpt.train:step"]) == 2
    told = capsys.readouterr().err
    assert "; it is in src: begin the command with: env PYTHONPATH=src\n" in told
    (project.path / "mygpt").mkdir()
    assert main([command, "mygpt.train:step"]) == 2
    assert "PYTHONPATH" not in capsys.readouterr().err


def test_commands_of_a_src_layout_find_its_sources(project, capsys, monkeypatch):
    """Those that are printed, and that of the workflow."""
    monkeypatch.setenv("PYTHONPATH", "src")
    project.commit()
    assert project.init("--ci") == 0
    assert workflow_of(project)["env"] == {"PYTHONPATH": "src"}


SCRIPT = "print('trains')\n"


def declared(project, name):
    """The case of a test that init wrote."""
    path = project.path / "perf_tests" / f"test_{name}.py"
    compile(path.read_text(), "test", "exec")
    return [line.strip() for line in path.read_text().splitlines() if "Case(" in line][0]


@pytest.mark.parametrize(("arguments", "case"), [
    ((), 'Case("cpu", "train.py", device="cpu", launches=1),'),
    (
        ("--batch_size=12", "--name", 'a "b"'),
        'Case("cpu", "train.py", args=("--batch_size=12", "--name", "a \\"b\\"",), '
        'device="cpu", launches=1),',
    ),
])  # fmt: skip
def test_a_script_is_guarded_as_it_is(project, capsys, arguments, case):
    """What follows -- is the script's, options of the same name included."""
    (project.path / "train.py").write_text(SCRIPT)
    project.commit()
    assert main(["init", "--", "train.py", *arguments]) == 0
    assert declared(project, "train") == case
    assert project.measured == ["perf_tests/test_train.py"]
    assert "train.py runs unchanged: it writes its usual files, " in capsys.readouterr().out


def test_a_script_on_several_ranks_with_its_own_step(project):
    """The case has its ranks in its name, and what a step is."""
    (project.path / "inner").mkdir()
    (project.path / "inner" / "train-gpt.py").write_text(SCRIPT)
    project.commit()
    asked = ["--gpus", "2", "--every", "10", "--tokens", "4096", "--step-at", "a.b:c"]
    asked += ["--torchrun", "--data", "data", "--data", "../b.bin"]
    assert main(["init", *asked, "--", "inner/train-gpt.py"]) == 0
    assert declared(project, "train_gpt") == (
        'Case("cpu-2-ranks", "inner/train-gpt.py", loop=Loop(step_at="a.b:c", every=10, '
        'tokens_per_step=4096, torchrun=True), data=("data", "../b.bin",), device="cpu", '
        "world_size=2, launches=1),"
    )
    text = (project.path / "perf_tests" / "test_train_gpt.py").read_text()
    assert "from stepguard import Case, Loop\n" in text


def test_a_script_runs_in_the_folder_where_the_command_is_given(project, monkeypatch):
    """As ``python train.py`` does, whose data lie in ../data; that folder becomes pytest's root."""
    below = project.path / "mnist"
    below.mkdir()
    (below / "train.py").write_text(SCRIPT)
    project.commit()
    monkeypatch.chdir(below)
    assert main(["init", "--", "train.py"]) == 0
    assert sorted(project.git("ls-files", "mnist").split()) == [
        "mnist/.gitignore",
        "mnist/perf_tests/test_train.py",
        "mnist/pytest.ini",
        "mnist/train.py",
    ]
    text = (below / "perf_tests" / "test_train.py").read_text()
    assert 'Case("cpu", "train.py", device="cpu", launches=1),' in text


def test_a_module_is_run_as_python_runs_it(project):
    """What stands behind -m, and its arguments."""
    (project.path / "scripts").mkdir()
    (project.path / "scripts" / "base_train.py").write_text(SCRIPT)
    project.commit()
    assert main(["init", "--", "-m", "scripts.base_train", "--depth=2"]) == 0
    assert declared(project, "base_train") == (
        'Case("cpu", "-m scripts.base_train", args=("--depth=2",), device="cpu", launches=1),'
    )


def test_a_function_that_runs_a_loop(project):
    """An option about loops makes a factory's name that of a loop, which takes no device."""
    (project.path / "fits.py").write_text("def fit(layers): ...\n")
    project.commit()
    assert main(["init", "fits:fit", "layers=2", "--step-at", "optimizer"]) == 0
    assert declared(project, "fit") == (
        'Case("cpu", "fits:fit", {"layers": 2}, loop=Loop(), device="cpu", launches=1),'
    )


@pytest.mark.parametrize(("arguments", "says"), [
    (["--", "trian.py"], "there is no trian.py in {root} (did you mean train.py?)"),
    (["--", "python", "train.py"], "-- python: write the script and its arguments alone, -- "),
    (["--", "-m"], "-- -m: write the script and its arguments alone, -- train.py"),
    (["--", "-m", "pkg.train"], "there is no module pkg.train, seen from {root}"),
    (["--", "-c", "print()"], "-- -c: write the script and its arguments alone, -- train.py"),
    (["--", "train"], "Case.workload 'train': write 'package.module:function', or a script's "),
    (["my_model:train_step", "--", "train.py"], "my_model:train_step: name it, or a script be"),
    (["--every", "0", "--", "train.py"], "Loop.every 0: a number from 1 is needed"),
    (["--gpus", "0", "--", "train.py"], "--gpus 0: at least 1 is needed"),
    (["--gpus", "99999", "--", "train.py"], "--gpus 99999: of a CPU's ranks this machine can"),
    (["width=3", "--", "train.py"], "width=3: name it, or a script behind --, not both"),
])  # fmt: skip
def test_a_script_that_cannot_be_is_refused(project, capsys, arguments, says):
    """With what to write instead, before anything is written."""
    (project.path / "train.py").write_text(SCRIPT)
    project.commit()
    assert main(["init", *arguments]) == 2
    assert says.format(root=project.path) in capsys.readouterr().err
    assert not (project.path / "perf_tests").exists()
