"""What a rank runs is the tree's source, whatever bytecode lies beside it. A real launch."""

import os
import py_compile
from py_compile import PycInvalidationMode

from short_launches import be_patient, launch_spec

from stepguard.launch.worker_group import WorkerGroup

OLD_S = 1_600_000_000
SAYS = "from pathlib import Path\nPath(__name__).write_text({value!r})\n"


def with_bytecode(path, mode):
    """Write a module whose bytecode is of another source, of the same size and time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for value in ("bytecode", "source--"):
        path.write_text(SAYS.format(value=value))
        os.utime(path, (OLD_S, OLD_S))
        if value == "bytecode":
            py_compile.compile(path, invalidation_mode=mode, doraise=True)


def test_bytecode_of_another_source_is_not_run(tmp_path, monkeypatch):
    """By time and size, or unchecked: in the working directory, in a package, and elsewhere in the
    repository. What is installed there is loaded as always, and a module of bytecode alone, too.
    """
    be_patient(monkeypatch)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    root = tmp_path / "project"
    (tmp_path / ".git").mkdir()
    with_bytecode(root / "timed.py", PycInvalidationMode.TIMESTAMP)
    with_bytecode(root / "part" / "unchecked.py", PycInvalidationMode.UNCHECKED_HASH)
    with_bytecode(tmp_path / "lib" / "beside.py", PycInvalidationMode.TIMESTAMP)
    installed = tmp_path / "env" / "site-packages"
    with_bytecode(installed / "installed.py", PycInvalidationMode.UNCHECKED_HASH)
    (root / "fresh.py").write_text(SAYS.format(value="source--"))
    (root / "alone.py").write_text(SAYS.format(value="bytecode"))
    py_compile.compile(root / "alone.py", cfile=root / "alone.pyc", doraise=True)
    (root / "alone.py").unlink()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "lib"), str(installed)]))
    modules = ("timed", "part.unchecked", "beside", "installed", "fresh", "alone")
    with WorkerGroup(launch_spec(root, preload=modules)) as group:
        group.hello()
        group.leave()
    ran = {name: (root / name).read_text() for name in modules}
    from_bytecode = {"installed", "alone"}
    assert ran == {n: "bytecode" if n in from_bytecode else "source--" for n in modules}
    assert not list(root.glob("__pycache__/fresh*"))
