"""Checkpoints: written whole or not at all, checked when read, loaded without running any pickle.

A checkpoint is one file with the model, the optimizer, the loss scaler, every rank's random number
generators, the position in the data, the step and the options of the run. A folder keeps the last
few, so that a damaged newest one costs some steps and not the run.

    folder = Checkpoints(Path("runs/a"))
    folder.save(step, content)
    content = load(folder.paths()[-1])
"""

from __future__ import annotations

import os
import pickle
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from model.config import GPTConfig

FORMAT = "model.checkpoint 1"
_KEYS = frozenset({"format", "config", "encoding", "step", "options", "rng", "state", "tokens"})


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; one sentence with what was found and what to do."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, by step, in a folder; the newest ``keep`` stay."""

    folder: Path
    keep: int = 2

    def paths(self) -> list[Path]:
        """Return the finished ones, oldest first."""
        return sorted(self.folder.glob("checkpoint_????????.pt"))

    def newest(self) -> Path | None:
        """Return the newest one, if there is one."""
        paths = self.paths()
        return paths[-1] if paths else None

    def save(self, step: int, content: dict[str, Any]) -> Path:
        """Write ``content`` for ``step`` and remove what is older than the newest ``keep``.

        The file appears under its name when it is whole and on the disk: whatever ends this
        process, the newest file that has a name is complete.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(".checkpoint_*"):  # of a process that was killed here
            left.unlink(missing_ok=True)
        path = self.folder / f"checkpoint_{step:08d}.pt"
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save({"format": FORMAT, "step": step, **content}, file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # mkstemp lets nobody else read it
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync_folder(self.folder)
        for old in self.paths()[: -self.keep]:
            old.unlink(missing_ok=True)
        return path

    def before(self, path: Path) -> Path | None:
        """Return the checkpoint before ``path``, if there is one."""
        older = [one for one in self.paths() if one.name < path.name]
        return older[-1] if older else None


def _sync_folder(folder: Path) -> None:
    """Let the new name last, too, when the machine loses power now."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint that this module wrote, tensors in the CPU's memory.

    Raises:
        CheckpointError: missing, truncated, changed, or something else; the message names the
            checkpoint before it, if one is there.
    """
    older = Checkpoints(path.parent).before(path)
    remedy = f"; the one before it: {older}" if older else ""
    content = read(path, remedy)
    missing = _KEYS - set(content if isinstance(content, dict) else ())
    if missing or content["format"] != FORMAT:
        raise CheckpointError(f"{path} is no checkpoint of model.train{remedy}")
    return dict(content)


def read(path: Path, remedy: str = "", *, allow_pickle: bool = False) -> Any:
    """Return what ``torch.save`` put into ``path``.

    Only tensors and plain values are read; a file that holds other objects can run any program
    when it is unpickled, so that is done on request alone.

    Raises:
        CheckpointError: missing, truncated, changed, no file of torch.save, or with other objects.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file{remedy}")
    try:
        # torch checks the directory of the archive, and no checksum of what is in it.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
        raise CheckpointError(f"{path} is truncated or no checkpoint: {error}{remedy}") from None
    if damaged:
        raise CheckpointError(f"{path} is damaged in {damaged}{remedy}")
    try:
        if allow_pickle:
            return torch.load(path, map_location="cpu", weights_only=False, pickle_module=_Known)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = str(error).splitlines()[0][:200]
        raise CheckpointError(
            f"{path} holds more than tensors and plain values ({found}); if you trust who made it: "
            f"--allow-pickle{remedy}"
        ) from None
    except (AttributeError, ImportError, KeyError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}{remedy}") from None


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # Scripts such as build-nanogpt's pickle the class that they define themselves.
        return GPTConfig if name == "GPTConfig" else super().find_class(module, name)


class _Known:
    """What ``torch.load`` asks of a pickle module."""

    Unpickler = _Unpickler
    UnpicklingError = pickle.UnpicklingError
    load, loads = staticmethod(pickle.load), staticmethod(pickle.loads)
