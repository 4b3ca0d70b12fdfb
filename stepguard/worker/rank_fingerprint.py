"""A rank's device and software, the variables that change either, and its modules' files."""

import functools
import os
import platform
import site
import stat
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from stepguard.core.fingerprint import LIBRARIES, STEERING
from stepguard.core.replies import Sources
from stepguard.worker.torch_device import on_gpu, properties

_PREFIXES = (*STEERING, "TORCH_", "PYTORCH_", "NCCL_", "CUDNN_")
# Every launch sets these. Some name a folder of its tree, which is no difference between trees.
_OURS = ("TORCHINDUCTOR_CACHE_DIR", "TORCHELASTIC", "TORCH_EXTENSIONS_DIR", "PYTHONPATH")
_READ_ONCE = (
    "ENABLE_PERSISTENT_TMA_MATMUL",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_ALLOW_TF32",
    "TORCH_COMPILE",
    "TORCH_DYNAMO_",
)


def fingerprint(device: torch.device) -> dict[str, Any]:
    """Return the fields of evidence.Fingerprint that only torch knows, and the SM count."""
    return properties(device) | {
        "torch": str(torch.__version__),  # of a class of its own, which the wire does not know
        "triton": _version("triton"),
        "python": platform.python_version(),
        "arch": platform.machine(),
        "cpu_threads": torch.get_num_threads(),
        "environment": variables(_PREFIXES),
        "libraries": {name: _version(name) for name in LIBRARIES if name in sys.modules}
        | ({} if on_gpu(device) else {"processor": _processor()}),
    }


def _processor() -> str:
    """Return the processor's model, for which oneDNN chooses its kernels, and copies in them."""
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(models, platform.machine())}, {torch.backends.cpu.get_cpu_capability()}"


def read_once() -> dict[str, str]:
    """Return the variables that torch reads on import, before ranks are forked."""
    return variables(_READ_ONCE)


def variables(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that begin so, by name, less those that each launch sets."""
    return {
        key: value
        for key, value in sorted(os.environ.items())
        if key.startswith(prefixes) and not key.startswith(_OURS)
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def modules(package: str) -> Sources:
    """Return the files that code was loaded from, by module name, with links resolved.

    "installed": modules in folders of packages. "sources": all other modules, all modules of
    ``package``, and libraries in other folders, whoever loaded them (torch.ops.load_library,
    ctypes), as "library PATH".

    Python's own modules are left out. So are modules without a file: those built in, namespaces,
    and torch.ops, which names a file that does not exist. An editable install is not "installed",
    since its links or paths lead to a source elsewhere. Python code that was run without an import
    is not seen.
    """
    packages = _packages()
    with_python = (*packages, *_folders("stdlib", "platstdlib"))
    installed, sources = {}, {}
    for name, path in _loaded():
        if path.startswith(packages):
            installed[name] = path
        if not path.startswith(with_python) or name.partition(".")[0] == package:
            sources[name] = path
    known = {*sources.values()}
    libraries = (path for path in _libraries() if not path.startswith(with_python))
    sources |= {f"library {path}": path for path in libraries if path not in known}
    return Sources(sources=sources, installed=installed)


def _loaded() -> Iterator[tuple[str, str]]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and (path := _real_file(file)):
            yield name, path


@functools.cache  # of torch's two thousand modules, which a launch asks for again when it ends
def _real_file(file: str) -> str:
    """Return a file's resolved path; empty if it is neither a file nor in an archive."""
    folder, base = os.path.split(file)
    path = os.path.join(_real_folder(folder), base)
    mode = _mode(path)
    if stat.S_ISLNK(mode):
        path = os.path.realpath(path)
        mode = _mode(path)
    is_file = stat.S_ISREG(mode) or any(parent.is_file() for parent in Path(path).parents)
    return path if is_file else ""


@functools.cache
def _real_folder(folder: str) -> str:
    above, name = os.path.split(folder)
    if name in ("", os.curdir, os.pardir) or os.path.islink(folder):
        return os.path.realpath(folder)
    return os.path.join(_real_folder(above), name)


def _mode(path: str) -> int:
    """Return what a path is, as os.lstat says; 0 for nothing."""
    try:
        return os.lstat(path).st_mode
    except (OSError, ValueError):  # a name that no file can have
        return 0


def _packages() -> tuple[str, ...]:
    others = (*site.getsitepackages(), site.getusersitepackages())
    return (*_folders("purelib", "platlib"), *(f"{Path(folder).resolve()}/" for folder in others))


def _folders(*names: str) -> Iterator[str]:
    known = sysconfig.get_paths()
    return (f"{Path(known[name]).resolve()}/" for name in names)


def _libraries() -> list[str]:
    """Return the files from which this process runs machine code, without Python's own."""
    own = tuple(f"{os.path.realpath(prefix)}/" for prefix in (sys.prefix, sys.base_prefix))
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        fields = [line.rstrip("\n").split(maxsplit=5) for line in maps]
    mapped = {mapping[5] for mapping in fields if len(mapping) == 6 and "x" in mapping[1]}
    return sorted(path for path in mapped if not path.startswith(own) and os.path.isfile(path))
