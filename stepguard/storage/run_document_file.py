"""Documents as files: whole or not at all, and only over an earlier document.

The document of a run is read strictly, since anybody may have written it.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stepguard.core.device import GPU
from stepguard.core.margins import margins_of
from stepguard.core.metrics import METRICS
from stepguard.core.reason_sentences import Said
from stepguard.core.recording import BaselineFile
from stepguard.core.run_document import PAGE_MARK, SCHEMA, SUFFIXES, RunDocument
from stepguard.core.text import listed
from stepguard.machine.git.revision import head_of, is_tracked
from stepguard.machine.interpreter import as_typed
from stepguard.storage.json_file import FileError, contents, read, replace_file

# How files of one kind begin, by suffix. It tells an earlier such file from the user's files.
FileKind = Mapping[str, bytes]
DOCUMENT = dict.fromkeys(SUFFIXES, b"") | {".html": f"<!DOCTYPE html>\n{PAGE_MARK}".encode()}
# Keys of each kind of document, in all versions.
_MARKS = (
    {"schema", "results", "problems"},  # --perf-json
    {"case", "verdict", "evidence"},  # run
    {"explanation", "before", "after"},  # trace --against
    {"schema", "sweep", "rows"},
    {"schema", "anchor", "series"},  # history
)
# Keys of each item of judge's document, now and in earlier versions.
_VERDICTS = ({"verdict", "text"}, {"case_id", "outcome", "headline"})
_TRACED = {"ranks", "collectives"}  # of trace and memory


def put(path: Path, text: str) -> str:
    """Write a document, whole or not at all. Return why that failed; empty if it did not."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def kept_from(path: Path, kind: FileKind = DOCUMENT) -> str:
    """Return why a document may not replace a file; "" for an empty one or a document."""
    if not os.path.lexists(path):
        return ""
    if not path.is_file() or path.is_symlink():
        return "is a link or no file, which a document would replace"
    if not path.stat().st_size:
        return ""
    # If an option's value was forgotten, the next argument, a test file, would be its path.
    if path.suffix not in kind:
        yours = "is a file that may be yours, which a document would replace"
        return f"{yours}: name one that ends in {listed([*kind], len(kind))}"
    if is_tracked(path):
        return "is a file in git, which a document would replace: name another one"
    if path.suffix == ".json":
        content = _json_in(path)
        if isinstance(content, dict) and content.keys() == {*BaselineFile.__struct_fields__}:
            return "is a baseline, which a document would replace: name another file"
        known = _is_document(content)
    else:
        begins = kind[path.suffix]
        known = head_of(path, len(begins)) == begins
    if not known:
        return "is no earlier document, which another one would replace: name another file"
    return ""


def _json_in(path: Path) -> Any:
    """Return the JSON in a file; None if it is no JSON, or larger than any document."""
    try:
        return msgspec.json.decode(contents(path) or b"")
    except (FileError, msgspec.DecodeError, RecursionError):
        return None


def _is_document(content: Any) -> bool:
    """Tell whether a command, or a run, wrote this as its document."""
    if isinstance(content, list):
        return all(
            isinstance(item, dict) and any(item.keys() >= mark for mark in _VERDICTS)
            for item in content
        )
    keys = content.keys() if isinstance(content, dict) else set()
    # The key "ranks" alone marks a document only if no other keys but "collectives" are there.
    return any(keys >= mark for mark in _MARKS) or ("ranks" in keys and keys <= _TRACED)


def unwritable(path: Path, kind: FileKind = DOCUMENT) -> str:
    """Make the folder of a document. Return why it cannot be written there; empty if it can."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return "a part of its path is a file: name a file in a folder"
    except OSError as error:
        return error.strerror or str(error)
    # Checked before the run: at its end, hours of measuring would be lost.
    if path.is_dir():
        return "is a folder: name a file in it"
    if problem := kept_from(path, kind):
        return problem
    # The folder must be writable, too: the new file is first written beside the old one.
    for target in (path, path.parent):
        if target.exists() and not os.access(target, os.W_OK):
            return f"no permission to write to {target}: make it writable, or name another file"
    return ""


def load_document(path: Path) -> RunDocument:
    """Return the document of a run. Raises FileError if it is not exactly such a document."""
    measure = as_typed("pytest perf_tests --perf-json=PATH")
    remedy = f"make it anew: {measure}"
    command = "pytest perf_tests --perf-json=PATH"
    document = read(path, RunDocument, SCHEMA, command, _problems, remedy)
    if document is None:
        raise FileError(f"{path}: no such document; make it with: {measure}")
    return document


def _problems(document: RunDocument) -> Iterator[str]:
    yield from (
        f"{case_id!r} has two results" for case_id in _twice(r.case for r in document.results)
    )
    for result in document.results:
        if result.verdict.case_id != result.case:
            yield f"the verdict of {result.case!r} is of {result.verdict.case_id!r}"
        judged = [metric.metric for metric in result.verdict.metrics]
        # Of two verdicts on one metric the gate would believe the last.
        yield from (f"{result.case!r} has two verdicts on {name!r}" for name in _twice(judged))
        figures, reason = result.verdict.figures, result.verdict.reason
        if figures and not isinstance(figures, (*reason.figures, Said)):
            yield f"{result.case!r} is {reason}, with the figures of {type(figures).__name__}"
        for name in (*result.gates, *result.metrics, *judged):
            if name not in METRICS:
                yield f"{result.case!r} has {name!r}, which is no metric"
        try:
            margins_of(result.margins_pct, GPU)
        except ValueError:
            yield f"{result.case!r} has margins_pct {result.margins_pct}, which are none"


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
