"""An installation brings every module along."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import stepguard
from stepguard.machine.gpu import MachineError
from stepguard.machine.packages import require_torch

ROOT = Path(__file__).resolve().parents[1]


def project():
    """What pyproject.toml says of the distribution."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_what_is_installed_is_what_the_gate_imports():
    """The model's tokenizer and ranges are not: nor what is used only where it is there, nor torch,
    which is the user's.
    """
    names = {line.partition(">=")[0] for line in project()["dependencies"]}
    imports = {"greenlet", "msgspec", "numpy", "packaging", "pytest"}
    assert names == imports | {"nvidia-ml-py", "pytest-benchmark"}
    assert project()["optional-dependencies"].keys() == {"torch"}


def test_the_version_is_one():
    """Of the package, of the command, which is installed as stepguard, and of the newest change."""
    module, _, function = project()["scripts"]["stepguard"].partition(":")
    code = f"import sys, {module} as found; sys.argv[1:] = ['--version']; found.{function}()"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    for command in (["-c", code], ["-m", "stepguard", "--version"]):
        done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True)
        assert done.stdout == f"stepguard {stepguard.__version__}\n", done.stderr
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == stepguard.__version__


def test_the_lab_is_the_same_release():
    """It needs the gate of its own version; what both need has one lower bound."""
    lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    assert lab["version"] == stepguard.__version__
    assert lab["requires-python"] == project()["requires-python"]
    gate, *others = lab["dependencies"]
    assert gate == f"stepguard=={stepguard.__version__}"
    bounds = [line.split(">=") for line in (*others, *project()["dependencies"])]
    assert len({name for name, _ in bounds}) == len({tuple(bound) for bound in bounds})


def test_an_index_shows_where_the_project_is():
    """Its repository, which is the lab's, too, with pages that are there, and one license."""
    lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    assert (ROOT / "LICENSE").read_text() == (ROOT / "lab" / "LICENSE").read_text()
    same = ("authors", "license", "license-files")
    assert [lab[name] for name in same] == [project()[name] for name in same]
    repository = project()["urls"]["Repository"]
    for urls in (project()["urls"], lab["urls"]):
        assert urls["Repository"] == repository and urls["Issues"] == f"{repository}/issues"
        for name in ("Documentation", "Changelog"):
            front, page = urls[name].split("/blob/main/")
            assert front == repository and (ROOT / page).is_file()


def test_an_index_shows_a_page_whose_links_lead_somewhere(installed):
    """The README's relative links go to the repository's files, the lab's too."""
    front = f"{project()['urls']['Repository']}/blob/main/"
    for name in ("stepguard", "stepguard-lab"):
        (found,) = metadata.distributions(name=name, path=[str(installed)])
        assert found.metadata["Description-Content-Type"] == "text/markdown"
        page = found.metadata["Description"] or found.metadata.get_payload()
        links = re.findall(r"\]\(([^)#]+)", page)
        assert len(links) > 5 and all(link.startswith(front) for link in links)
        assert all((ROOT / link.removeprefix(front)).exists() for link in links), links


def test_a_package_that_is_missing_is_one_sentence(tmp_path):
    """Not a traceback: which it is, and the command that installs it."""
    (tmp_path / "msgspec.py").write_text("raise ModuleNotFoundError(name='msgspec')\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}
    command = [sys.executable, "-m", "stepguard", "doctor"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith("stepguard: msgspec is not installed; ")
    assert line.endswith(f" -m pip install {ROOT}")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that the wheels of this tree are installed in, without what they need."""
    tree, wheels, site = (tmp_path_factory.mktemp(name) for name in ("tree", "wheels", "site"))
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("stepguard", "docs", "lab"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored, symlinks=True)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    for folder in (tree, tree / "lab"):
        built("wheel", folder, wheels)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    offline = ["--no-deps", "--no-index", "--no-compile", "--target", str(site)]
    subprocess.run([*pip, *offline, *map(str, wheels.iterdir())], check=True)
    return site


def built(kind, tree, folder):
    """Build the wheel or the sdist of a tree into a folder, as pip does without isolation."""
    build = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)


def test_the_wheels_have_all_that_runs(installed):
    """Every module and every file beside them, the marker of types too, and no other folder."""
    packages = (ROOT / "stepguard", ROOT / "lab" / "stepguard_lab")
    files = {
        path.relative_to(package.parent)
        for package in packages
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files == {path for path in files if (installed / path).is_file()}
    others = ("model", "tests", "perf_tests", "lab", "sweeps")
    assert not [name for name in others if (installed / name).exists()]


def test_the_installed_command_runs_outside_of_a_clone(installed, tmp_path):
    """As pip leaves it: its version, a page that it brings along, a script that is not there."""
    env = os.environ | {"PYTHONPATH": str(installed)}

    def typed(*arguments):
        command = [sys.executable, str(installed / "bin" / "stepguard"), *arguments]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)

    assert typed("--version").stdout == f"stepguard {stepguard.__version__}\n"
    assert "BAD_WORKLOAD" in typed("explain-code", "BAD_WORKLOAD").stdout
    # A page that it names was installed, too.
    explained = typed("explain-code", "CHANGED_KERNELS").stdout
    (more,) = re.findall("more: (.*): kernels against kernels", explained)
    assert Path(more).is_relative_to(installed) and Path(more).is_file()
    assert "--with-stack" in typed("record-traces", "--help").stdout  # the lab's, by entry point
    missing = typed("run", "--", "train.py")
    assert missing.returncode == 2 and "there is no train.py in" in missing.stderr


def test_a_torch_that_is_missing_or_too_old_is_one_sentence(monkeypatch):
    """Before anything is measured, with the command that installs one; another's is let be."""
    plain = metadata.version

    def with_version(found):
        def version(name):
            if name == "torch" and not found:
                raise metadata.PackageNotFoundError(name)
            return found if name == "torch" else plain(name)

        monkeypatch.setattr(metadata, "version", version)

    for found, front in (("", "is not installed"), ("2.7.1", "2.7.1 is installed, torch>=2.8 is ")):
        with_version(found)
        with pytest.raises(MachineError, match=f"^torch {front}.*-m pip install 'torch>=2.8'"):
            require_torch()
    for found in ("2.8.0+cpu", "2.15.0a0"):
        with_version(found)
        require_torch()


def link_or_copy(source, target):
    """Give a file a second place: the same file, where that is on the same disk."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy(source, target, follow_symlinks=False)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone: an sdist, unpacked")
def test_the_sdist_s_tests_run(tmp_path):
    """It has every file of the project, so that its tests run as a clone's do; some are tried."""
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    names = [name for name in tracked.split("\0") if (ROOT / name).is_file()]
    tree = tmp_path / "tree"
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(ROOT / name, tree / name)
    built("sdist", tree, tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    assert [name for name in names if not os.path.lexists(unpacked / name)] == []
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    test.append("tests/test_suite_baselines.py")
    subprocess.run(test, cwd=unpacked, check=True, capture_output=True)
