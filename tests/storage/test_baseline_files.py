"""Baseline files: what is written is read back, and what cannot be trusted is refused whole."""

import errno
import json
import math
import os
import signal
import stat
import subprocess
import tempfile
import time

import msgspec
import pytest
from builders import (
    CASE,
    CASE_ID,
    COUNTS,
    PROPERTY,
    baseline_file,
    entry,
    epoch,
    recording,
)
from git_repositories import git, repository
from hypothesis import given
from hypothesis import strategies as st

from stepguard.core.metrics import METRICS
from stepguard.core.recording import (
    SCHEMA,
    BaselineFile,
    Entry,
    Epoch,
    RecordedDifference,
    Recording,
)
from stepguard.core.site import Site
from stepguard.core.strict_json import LARGEST
from stepguard.storage import json_file
from stepguard.storage.baseline_files import file_name, load, save
from stepguard.storage.json_file import FileError

KEY = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
COUNT = st.integers(0, 2**62)
FINITE = st.floats(-LARGEST, LARGEST)
TIMES = [name for name, metric in METRICS.items() if metric.kind == "time"]
COUNTERS = [name for name, metric in METRICS.items() if metric.kind == "counter"]
DIFFERENCES = [name for name, metric in METRICS.items() if metric.kind == "difference"]
MS = st.floats(1e-4, 1e9)
WIDTH = st.floats(0, 100)
SITES = st.builds(
    Site, what=WORDS, file=KEY, line=st.integers(0, 2**31), function=KEY, text=KEY, phase=KEY,
    count=st.integers(1, 2**31), allowed=KEY)  # fmt: skip
RECORDINGS = st.builds(
    Recording, date=WORDS, commit=WORDS, device_uuid=KEY,
    software=st.dictionaries(KEY, KEY, max_size=3), driver=KEY,
    tokens_per_step=st.integers(1, 2**53),
    times_ms=st.dictionaries(
        st.sampled_from(TIMES), st.lists(MS, min_size=1, max_size=3), max_size=2),
    counters=st.dictionaries(st.sampled_from(COUNTERS), COUNT, max_size=3),
    information=st.dictionaries(KEY, FINITE, max_size=2),
    detail=st.dictionaries(KEY, st.dictionaries(KEY, COUNT, max_size=3), max_size=2),
    sites=st.dictionaries(
        st.sampled_from(COUNTERS), st.lists(SITES, min_size=1, max_size=2), max_size=2),
    differences_pct=st.dictionaries(
        st.sampled_from(DIFFERENCES),
        st.builds(RecordedDifference, mean=FINITE, half_width=WIDTH)))  # fmt: skip
LISTS = st.lists(COUNT, min_size=2, max_size=4)
RECORDINGS |= st.tuples(RECORDINGS, LISTS, COUNT).map(
    lambda drawn: msgspec.structs.replace(
        drawn[0], lists=dict.fromkeys(drawn[0].counters, drawn[1]), counted_after_steps=drawn[2]
    )
)
EPOCHS = st.builds(
    Epoch, reason=WORDS, recordings=st.lists(RECORDINGS, min_size=1, max_size=2))  # fmt: skip
PARAMS = st.dictionaries(KEY, st.none() | st.booleans() | COUNT | FINITE | KEY, max_size=3)
ENTRIES = st.builds(
    Entry,
    case=PARAMS.map(lambda params: CASE | {"params": params}),
    epochs=st.lists(EPOCHS, min_size=1, max_size=2),
    margins_pct=st.sampled_from([[], [0.0, 1.5]]),
)
FILES = st.builds(
    BaselineFile, schema=st.just(SCHEMA), machine=WORDS,
    cases=st.dictionaries(KEY, ENTRIES, max_size=2))  # fmt: skip


@pytest.fixture
def path(tmp_path):
    """A sound baseline file."""
    save(tmp_path / "h200x1.json", baseline_file())
    return tmp_path / "h200x1.json"


def plain():
    """The sound file's content, to be spoilt."""
    return msgspec.to_builtins(baseline_file())


def refused(path, *words):
    """The message of the refusal; it names the file, and leaves it as it was."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(FileError) as raised:
        load(path)
    message = str(raised.value)
    assert str(path) in message
    for word in words:
        assert word in message
    assert before is None or path.read_bytes() == before
    return message


@PROPERTY
@given(FILES)
def test_save_and_load_give_the_same_file(tmp_path, many_files, content):
    """Any valid content is read back equal, with whatever characters its keys have. Saving what was
    loaded changes no byte; keys are sorted at every depth, ASCII, no tabs.
    """
    save(tmp_path / "x.json", content)
    first, loaded = (tmp_path / "x.json").read_bytes(), load(tmp_path / "x.json")
    assert loaded == content
    save(tmp_path / "x.json", loaded)
    assert (tmp_path / "x.json").read_bytes() == first
    assert first.endswith(b"}\n") and first.isascii() and b"\t" not in first

    def check(pairs):
        keys = [key for key, _ in pairs]
        assert keys == sorted(keys)
        return dict(pairs)

    json.loads(first, object_pairs_hook=check)


def test_a_changed_counter_is_one_line_of_a_diff(tmp_path):
    """A git diff is the review: one counter of one case moves one line."""
    now = entry(epochs=[epoch(recordings=[recording(counters=COUNTS | {"graph_breaks": 9})])])
    save(tmp_path / "a.json", baseline_file(cases={"a": entry(), "b": entry()}))
    save(tmp_path / "b.json", baseline_file(cases={"a": entry(), "b": now}))
    old = (tmp_path / "a.json").read_text().splitlines()
    new = (tmp_path / "b.json").read_text().splitlines()
    assert len(old) == len(new)
    assert sum(one != other for one, other in zip(old, new, strict=True)) == 1


def test_a_file_can_be_read_by_everybody(path):
    """The mode is that of a file in a repository, not of a temporary one."""
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_file_cut_anywhere_is_refused(tmp_path, path, many_files):
    """Truncated at any byte, the empty file included, it is refused."""
    whole = path.read_bytes()
    assert len(whole) < 4000  # every cut is tried
    cut = tmp_path / "cut.json"
    for length in range(len(whole) - 1):  # the last byte is the newline
        cut.write_bytes(whole[:length])
        with pytest.raises(FileError, match="cut.json"):
            load(cut)


def test_a_schema_of_the_future_has_its_own_remedy(path):
    """The message gives both schemas, and no command that moves away what a newer version recorded;
    of an older one it is made anew.
    """
    path.write_text(json.dumps(plain() | {"schema": 2, "new_field": {}}))
    assert "mv " not in refused(path, "schema 2", "reads 1", "update stepguard")
    path.write_text(json.dumps(plain() | {"schema": 0}))
    refused(path, "schema 0", "reads 1", f"mv {path} {path}.old && ", "--perf-update")


def spoil(document, where, value):
    """``document`` with the value at the path ``where`` replaced."""
    *way, last = where
    inner = document
    for key in way:
        inner = inner[key]
    inner[last] = value
    return document


DIFFERENCE = {"mean": 1.0, "half_width": 0.1}
RECORDING = ("cases", CASE_ID, "epochs", 0, "recordings", 0)
SPOILT = {
    "NaN": ((*RECORDING, "times_ms", "step_ms", 0), math.nan),
    "negative time": ((*RECORDING, "times_ms", "step_ms", 0), -1.0),
    "no times": ((*RECORDING, "times_ms", "step_ms"), []),
    "time of no metric": ((*RECORDING, "times_ms", "step_seconds"), [1.0]),
    "counter as time": ((*RECORDING, "times_ms", "graph_breaks"), [1.0]),
    "negative counter": ((*RECORDING, "counters", "graph_breaks"), -1),
    "huge counter": ((*RECORDING, "counters", "graph_breaks"), 10**400),
    "unknown counter": ((*RECORDING, "counters", "graph_brakes"), 1),
    "time as counter": ((*RECORDING, "counters", "step_ms"), 1),
    "less than no tokens": ((*RECORDING, "tokens_per_step"), -1),
    "huge information": ((*RECORDING, "information", "mfu_pct"), 10**300),
    "empty date": ((*RECORDING, "date"), ""),
    "unknown field": ((*RECORDING, "comment"), "faster"),
    "unknown field of an entry": (("cases", CASE_ID, "skip"), True),
    "no recordings": (("cases", CASE_ID, "epochs", 0, "recordings"), []),
    "no epochs": (("cases", CASE_ID, "epochs"), []),
    "no reason": (("cases", CASE_ID, "epochs", 0, "reason"), ""),
    "difference of no metric": ((*RECORDING, "differences_pct"), {"sync_pct": DIFFERENCE}),
    "time as difference": ((*RECORDING, "differences_pct"), {"step_ms": DIFFERENCE}),
    "negative width": (
        (*RECORDING, "differences_pct"), {"sync_overhead_pct": DIFFERENCE | {"half_width": -1.0}}),
    "sites of no metric": ((*RECORDING, "sites"), {"graph_brakes": [{"what": "x"}]}),
    "site of nothing": ((*RECORDING, "sites"), {"graph_breaks": [{"file": "a.py"}]}),
    "unknown field of a site": (
        (*RECORDING, "sites"), {"graph_breaks": [{"what": "x", "allow": "y"}]}),
    "site that happens never": (
        (*RECORDING, "sites"), {"graph_breaks": [{"what": "x", "count": 0}]}),
    "negative detail": ((*RECORDING, "detail"), {"x": {"y": -1}}),
    "half of the margins": (("cases", CASE_ID, "margins_pct"), [1.0]),
    "margins that are none": (("cases", CASE_ID, "margins_pct"), [3.0, 1.0]),
    "no machine": (("machine",), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_value_is_refused(path, name):
    """One wrong value anywhere refuses the file, with the command that puts it aside."""
    where, value = SPOILT[name]
    path.write_text(json.dumps(spoil(plain(), where, value)))
    refused(path, f"mv {path} {path}.old")


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("after", [0, 2])
def test_a_wrong_value_is_said_with_the_keys_to_it(path, before, after):
    """Of many cases the one that is wrong is named, the first if there are several."""
    document = spoil(plain(), (*RECORDING, "counters", "graph_breaks"), "1")
    names = [f"a[{n}]" for n in range(before)] + [CASE_ID] + [f"z[{n}]" for n in range(after)]
    sound = plain()["cases"][CASE_ID]
    document["cases"] = {
        name: document["cases"][CASE_ID] if name[0] != "a" else sound for name in names
    }
    path.write_text(json.dumps(document))
    where = f'$.cases["{CASE_ID}"].epochs[0].recordings[0].counters["graph_breaks"]`: "1"'
    refused(path, f"Expected `int`, got `str` - at `{where}; ")


@pytest.mark.parametrize("name", ["cpu.json", "my cpu.json"])
def test_the_remedy_is_a_command_that_works(tmp_path, name):
    """What git has comes back; of what it has not the file is put aside, and nothing is lost."""
    path = tmp_path / name
    path.write_text("{")
    subprocess.run(refused(path).rpartition(" with: ")[2], shell=True, check=True)
    assert load(path) is None and (tmp_path / f"{name}.old").read_text() == "{"
    save(path, baseline_file())
    repository(tmp_path)
    git(tmp_path, "add", "-A")
    path.write_text("{")
    assert "git checkout" in refused(path)
    subprocess.run(refused(path).rpartition(" with: ")[2], shell=True, check=True, cwd=tmp_path)
    assert load(path) is not None


LATER = {
    "operators": msgspec.UNSET,
    "sites": {},
    "differences_pct": {},
    "by_rank": msgspec.UNSET,
    "lists": msgspec.UNSET,
    "counted_after_steps": msgspec.UNSET,
    "profile": msgspec.UNSET,
    "libraries": msgspec.UNSET,
    "callers": msgspec.UNSET,
    "numbers": msgspec.UNSET,
}  # an older file has none of these


@pytest.mark.parametrize("field", [f for f in Recording.__struct_fields__ if f not in LATER])
def test_a_missing_field_is_refused(path, field):
    """Every field that there always was is needed, and the message says which is missing."""
    document = plain()
    del document["cases"][CASE_ID]["epochs"][0]["recordings"][0][field]
    path.write_text(json.dumps(document))
    refused(path, field, "mv ")


@pytest.mark.parametrize("field", LATER)
def test_a_file_from_before_a_field_is_read(path, field):
    """What was not recorded then is empty; a gate that needs it says that it is not recorded."""
    document = plain()
    document["cases"][CASE_ID]["epochs"][0]["recordings"][0].pop(field, None)
    path.write_text(json.dumps(document))
    assert getattr(load(path).cases[CASE_ID].epochs[0].recordings[0], field) == LATER[field]


@pytest.mark.parametrize(
    "by_rank", [{"flops_per_step": [1]}, {"flops_per_step": []}, {"nonsense": [1, 2]}]
)
def test_counts_of_other_ranks_than_the_cases_are_refused(path, by_rank):
    """One for each of its two ranks, of a counter that is recorded."""
    document = plain()
    entry = document["cases"][CASE_ID]
    entry["case"]["world_size"] = 2
    recorded = entry["epochs"][0]["recordings"][0]
    path.write_text(json.dumps(document))
    refused(path, "lacks by_rank", "mv ")
    recorded["by_rank"] = {"flops_per_step": [1, recorded["counters"]["flops_per_step"]]}
    path.write_text(json.dumps(document))
    load(path)
    recorded["by_rank"] = by_rank
    path.write_text(json.dumps(document))
    refused(path, "by_rank", "mv ")


@pytest.mark.parametrize("steps", [{"nonsense": [1, 2]}, {"flops_per_step": []}])
def test_a_list_of_no_recorded_counter_and_one_of_no_steps_are_refused(path, steps):
    """Steps differ only if there are two."""
    document = plain()
    document["cases"][CASE_ID]["epochs"][0]["recordings"][0]["lists"] = steps
    path.write_text(json.dumps(document))
    refused(path, "lists has", "mv ")


@pytest.mark.parametrize("depth", ["machine", "cases", "step_ms"])
def test_a_key_that_stands_twice_is_refused(path, depth):
    """A duplicate key is refused at any depth: the later one would win silently."""
    text = path.read_text()
    index = text.index(f'"{depth}":')
    path.write_text(text[:index] + f'"{depth}": 1, ' + text[index:])
    refused(path, depth, "twice", "mv ")


@pytest.mark.parametrize("marker", ["<<<<<<< HEAD", "=======", ">>>>>>> main"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_merge_conflict_is_called_one(path, marker, newline):
    """A conflict marker is refused as such, with its line and how to choose a side."""
    lines = path.read_text().splitlines()
    path.write_bytes(newline.join([*lines[:5], marker, *lines[5:]]).encode())
    refused(path, "line 6", "merge conflict", "git checkout --ours")


@pytest.mark.parametrize("content", [
    b"\x00\x01\x02\xff", b"null", b"[]", b"{}", b"\xef\xbb\xbf{}", b"[" * 100_000,
], ids=lambda content: repr(content[:6]))  # fmt: skip
def test_garbage_is_refused(path, content):
    """Whatever is not a baseline file is refused with a remedy, never with another exception."""
    path.write_bytes(content)
    message = refused(path)
    assert "mv " in message or "--perf-update" in message


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    """A folder of that name is refused, with what it is and a remedy."""
    (tmp_path / "cpu.json").mkdir()
    refused(tmp_path / "cpu.json", "directory", "mv ")


def test_a_device_or_a_pipe_is_refused(tmp_path):
    """Neither is read, since it might never end; a link to either is the same."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "device.json").symlink_to("/dev/zero")
    for name in ("pipe.json", "device.json"):
        refused(tmp_path / name, "not a regular file", "mv ")


@pytest.mark.parametrize(("size", "too_large"), [(64 << 20, False), ((64 << 20) + 1, True)])
def test_at_most_64_mib_are_read(path, size, too_large):
    """A file of 64 MiB is read, and refused for its content; one more byte is too large."""
    path.write_bytes(b"\xff")  # no UTF-8: it is refused at its first byte
    with path.open("r+b") as file:
        file.truncate(size)
    with pytest.raises(FileError) as raised:
        load(path)
    assert ("bytes, at most" in str(raised.value)) is too_large


def test_no_file_is_written_that_would_be_too_large_to_read(path, monkeypatch):
    """A file of the most bytes is written. One byte more is refused, and the old file stays."""
    content, data = load(path), path.read_bytes()
    path.write_bytes(b"")
    monkeypatch.setattr(json_file, "MAX_BYTES", len(data) - 1)
    with pytest.raises(FileError, match="not written: .* bytes, at most"):
        save(path, content)
    assert path.read_bytes() == b""
    monkeypatch.setattr(json_file, "MAX_BYTES", len(data))
    save(path, content)
    assert path.read_bytes() == data


def test_many_keys_are_read_in_linear_time(path):
    """600 KiB of keys: compared with each other in pairs they would take minutes."""
    document = plain()
    many = {f"operator {number}": number for number in range(30_000)}
    spoil(document, (*RECORDING, "detail", "operator_calls_per_step"), many)
    path.write_text(json.dumps(document))
    began = time.process_time()
    assert load(path) is not None
    assert time.process_time() - began < 10
    text = path.read_text()
    path.write_text(text.replace('"operator 29999"', '"operator 0"'))
    refused(path, "'operator 0' is there twice")
    path.write_text(text.replace(": 29999", ': "many"'))
    refused(path, '.detail["operator_calls_per_step"]["operator 29999"]`: "many"; ')
    assert time.process_time() - began < 20


@pytest.mark.parametrize("where", ["mkstemp", "fsync", "replace"])
def test_a_ctrl_c_while_a_file_is_written_leaves_no_other_beside_it(path, monkeypatch, where):
    """It comes when the file is whole: no temporary one stays in the folder."""
    module = tempfile if where == "mkstemp" else os
    real = getattr(module, where)
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return real(*arguments, **options)

    monkeypatch.setattr(module, where, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            save(path, baseline_file(cases={}))
    finally:
        signal.signal(signal.SIGINT, heeded)
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert load(path) == baseline_file(cases={})


def test_a_device_is_not_even_opened(tmp_path, monkeypatch):
    """To open some devices already does something."""
    (tmp_path / "device.json").symlink_to("/dev/null")
    opened, plain = [], os.open
    monkeypatch.setattr(os, "open", lambda path, *how: opened.append(path) or plain(path, *how))
    refused(tmp_path / "device.json", "not a regular file")
    assert tmp_path / "device.json" not in opened


def test_what_would_not_be_read_is_not_written(path):
    """Types and rules alike: the old file stays, and says so."""
    before = path.read_bytes()
    for cases in (
        {CASE_ID: entry(case={"workload": "w"})},
        {CASE_ID: entry(epochs=[])},
        {CASE_ID: entry(epochs=[epoch(recordings=[recording(counters={"step_ms": 1})])])},
        {CASE_ID: entry(epochs=[epoch(recordings=[recording(times_ms={"step_ms": [1e-9]})])])},
        {CASE_ID: entry(epochs=[epoch(recordings=[recording(commit="")])])},
    ):
        with pytest.raises(FileError, match="not written: "):
            save(path, baseline_file(cases=cases))
    assert path.read_bytes() == before


def raising(error):
    """A function that raises."""

    def function(*args, **kwargs):
        raise error

    return function


@pytest.mark.parametrize("call", ["os.replace", "os.fsync", "tempfile.mkstemp", "os.chmod"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_failed_save_leaves_the_old_file(path, monkeypatch, call, number):
    """A full disk or a read-only folder leaves the old file as it was, and nothing beside it."""
    before = path.read_bytes()
    monkeypatch.setattr(call, raising(OSError(number, os.strerror(number))))
    with pytest.raises(FileError) as raised:
        save(path, baseline_file(machine="another"))
    assert str(path) in str(raised.value)
    assert os.strerror(number) in str(raised.value)
    assert "old file is unchanged" in str(raised.value)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("number", "first"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "make {} writable")]
)
def test_what_has_to_be_done_before_it_can_be_written(path, monkeypatch, number, first):
    """By the reason; and an old file is spoken of where there is one."""

    def fail(path, data):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(json_file, "replace_file", fail)
    told = f"{os.strerror(number)}; the old file is unchanged; {first.format(path.parent)}; "
    with pytest.raises(FileError, match=f"cannot be written: {told}the evidence is kept: "):
        save(path, baseline_file())
    path.unlink()
    with pytest.raises(FileError, match=f"{os.strerror(number)}; {first.format(path.parent)}; "):
        save(path, baseline_file())


@pytest.mark.parametrize(("device", "name", "world_size", "file"), [
    ("cpu", "", 1, "cpu.json"),
    ("cpu", "whatever", 4, "cpu.json"),
    ("cuda", "NVIDIA H200", 1, "h200x1.json"),
    ("cuda", "NVIDIA H100 80GB HBM3", 4, "h100-80gb-hbm3x4.json"),
    ("cuda", "NVIDIA A100-SXM4-80GB", 8, "a100-sxm4-80gbx8.json"),
    ("cuda", "GPU/../../x", 1, "gpu-xx1.json"),
])  # fmt: skip
def test_files_are_named_by_machine(device, name, world_size, file):
    """One file for a kind of GPU and their number, one for all CPUs."""
    assert file_name(device, name, world_size) == file
