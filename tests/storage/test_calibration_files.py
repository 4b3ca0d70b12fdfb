"""Calibration files: what is written is read back, and what cannot be trusted is refused whole."""

import json
import math

import msgspec
import pytest
from builders import CASE, CASE_ID, PROPERTY, SOFTWARE
from hypothesis import given, settings
from hypothesis import strategies as st

from stepguard.judge.ab.calibration import SCHEMA, CalibratedCase, CalibrationFile
from stepguard.machine.git.revision import current
from stepguard.storage import calibrations
from stepguard.storage.json_file import FileError

SOUND = CalibratedCase(
    case=CASE,
    date="2026-11-20T10:00:00+00:00",
    commit="a" * 40,
    device_uuid="GPU-1",
    driver="580.159",
    software=SOFTWARE,
    timing={"lead_s": 0.5, "block_s": 2.0},
    pairs=24,
    sd_pct=0.12,
    seconds_a_pair=31.5,
)
KEY = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
SECONDS = st.floats(1e-6, 1e6)
ENTRIES = st.builds(
    CalibratedCase,
    case=st.dictionaries(KEY, st.none() | st.booleans() | st.integers(0, 2**53) | KEY, max_size=3),
    date=WORDS,
    commit=WORDS,
    device_uuid=KEY,
    driver=KEY,
    software=st.dictionaries(KEY, KEY, max_size=3),
    timing=st.dictionaries(KEY, SECONDS, max_size=3),
    pairs=st.integers(6, 96),
    sd_pct=st.floats(0.001, 99),
    seconds_a_pair=SECONDS,
)


@pytest.fixture
def path(tmp_path):
    """A sound calibration file of one case."""
    found = calibrations.path_for(tmp_path / "h200x1.json")
    calibrations.put(found, "NVIDIA H200", CASE_ID, SOUND)
    return found


def plain():
    """The sound file's content, to be spoilt."""
    content = CalibrationFile(schema=SCHEMA, machine="NVIDIA H200", cases={CASE_ID: SOUND})
    return msgspec.to_builtins(content)


def test_it_lies_beside_the_baselines(path, tmp_path):
    """In a folder of its own, so that no baseline command takes it for a baseline."""
    assert path == tmp_path / "calibration" / "h200x1.json"
    assert not list(tmp_path.glob("*.json"))


@PROPERTY
@given(st.dictionaries(KEY, ENTRIES, min_size=1, max_size=3))
def test_what_is_put_is_read_back(tmp_path_factory, entries):
    """Any valid entries, in sorted keys, whatever the order that they came in."""
    one, other = (tmp_path_factory.mktemp("c") / "calibration" / "x.json" for _ in "ab")
    for path, items in ((one, entries.items()), (other, reversed(entries.items()))):
        for case_id, entry in items:
            calibrations.put(path, "M", case_id, entry)
    found = calibrations.load(one)
    assert (found.schema, found.machine, found.cases) == (SCHEMA, "M", entries)
    assert one.read_bytes() == other.read_bytes()
    assert one.read_bytes().isascii()


def test_another_case_stays_as_it_is(path):
    """A case's new calibration replaces its old one, and no other."""
    newer = msgspec.structs.replace(SOUND, sd_pct=0.3)
    calibrations.put(path, "NVIDIA H200", "b[x]", SOUND)
    calibrations.put(path, "NVIDIA H200", CASE_ID, newer)
    assert calibrations.load(path).cases == {CASE_ID: newer, "b[x]": SOUND}


def test_no_file_is_none(tmp_path):
    """A machine that was never calibrated is no error."""
    assert calibrations.load(tmp_path / "x.json") is None
    assert calibrations.load_for(tmp_path / "x.json", "M") is None
    calibrations.check_all(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sd_pct", 0.0),
        ("sd_pct", -0.1),
        ("sd_pct", 100.0),
        ("sd_pct", math.nan),
        ("sd_pct", math.inf),
        ("sd_pct", "0.1"),
        ("sd_pct", None),
        ("sd_pct", 1e-300),
        ("pairs", 5),
        ("pairs", 97),
        ("pairs", 23.5),
        ("pairs", True),
        ("seconds_a_pair", 0.0),
        ("timing", {"lead_s": -1.0}),
        ("timing", {"block_s": None}),
        ("case", None),
        ("software", {"torch": 2}),
        ("date", ""),
        ("comment", "quieter"),
        # They follow from the noise, to 4 % at most: nobody can write wider ones.
        ("matter_pct", 4.0),
        ("margins", {"ignore_pct": 0.2, "matter_pct": 4.0}),
        ("prior", {"sd_pct": 3.0, "degrees": 4.0}),
    ],
)
def test_a_spoilt_value_is_refused(path, field, value):
    """One wrong value refuses the file, names it, and says what to do with it."""
    document = plain()
    document["cases"][CASE_ID][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(FileError) as raised:
        calibrations.load(path)
    assert str(path) in str(raised.value) and f"mv {path} " in str(raised.value)


@pytest.mark.parametrize("field", CalibratedCase.__struct_fields__)
def test_a_missing_field_is_refused(path, field):
    """There is no field that a file may lack."""
    document = plain()
    del document["cases"][CASE_ID][field]
    path.write_text(json.dumps(document))
    with pytest.raises(FileError, match=field):
        calibrations.load(path)


@pytest.mark.parametrize("schema", [0, 1, "2", None])
def test_another_schema_is_refused(path, schema):
    """With both schemas and the command that makes a file."""
    path.write_text(json.dumps(plain() | {"schema": schema}))
    with pytest.raises(
        FileError, match="reads 2; make it anew: .*python.* -m stepguard calib"
    ) as e:
        calibrations.load(path)
    # The command reads the file first: where it is still there, it says the same again.
    assert f"anew: rm {path} && " in str(e.value)


def test_another_machines_file_is_refused(path):
    """It is neither used nor written into."""
    with pytest.raises(FileError, match="of 'NVIDIA H200', not of 'NVIDIA H100'"):
        calibrations.load_for(path, "NVIDIA H100")
    before = path.read_bytes()
    with pytest.raises(FileError, match="not of 'CPU'"):
        calibrations.put(path, "CPU", "a[b]", SOUND)
    assert path.read_bytes() == before


def test_a_file_cut_anywhere_is_refused(path):
    """Truncated at any byte but the last newline."""
    whole = path.read_bytes()
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FileError, match="h200x1.json"):
            calibrations.load(path)


TEXT = json.dumps(plain(), indent=1)


@settings(PROPERTY, max_examples=500)
@given(
    st.integers(0, len(TEXT) - 1),
    st.sampled_from("cdi"),
    st.sampled_from('0123456789-+.eE"{}[]:,\\ \nxdf') | st.characters(codec="utf-8"),
)
def test_an_edited_character_is_read_soundly_or_refused(path, place, how, character):
    """Changed, deleted or inserted: whatever is read keeps to the limits, the rest is refused."""
    rest = TEXT[place + (how != "i") :]
    path.write_text(TEXT[:place] + ("" if how == "d" else character) + rest, encoding="utf-8")
    try:
        found = calibrations.load(path)
    except FileError as error:
        assert str(path) in str(error)
        return
    for entry in found.cases.values():
        assert 0 < entry.sd_pct < 100 and 6 <= entry.pairs <= 96
        assert 0 < entry.prior.degrees <= 4


@pytest.mark.parametrize("changes", [{"sd_pct": 120.0}, {"pairs": 3}, {"date": ""}])
def test_what_could_not_be_read_back_is_not_written(path, changes):
    """A machine so noisy, say: the file stays as it was."""
    before = path.read_bytes()
    with pytest.raises(FileError, match="not written"):
        calibrations.put(path, "NVIDIA H200", "a[b]", msgspec.structs.replace(SOUND, **changes))
    assert path.read_bytes() == before


def test_what_cannot_be_written_leaves_the_old_file(path, monkeypatch):
    """A full disk: said, with what to do, and nothing half written."""

    def full(*arguments):
        raise OSError(28, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr("stepguard.storage.json_file.os.replace", full)
    with pytest.raises(FileError, match="No space left.*python -m stepguard calibrate again"):
        calibrations.put(path, "NVIDIA H200", CASE_ID, SOUND)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_new_file_does_not_dirty_the_tree(tmp_path):
    """As with the baselines themselves, so that the next case can be calibrated before a commit;
    a file of another kind beside it does.
    """
    from git_repositories import repository

    root = repository(tmp_path / "r", work="")
    path = calibrations.path_for(root / "baselines" / "cpu.json")
    calibrations.put(path, "CPU", "a[b]", SOUND)
    assert current(root, root / "baselines").dirty == ()
    (path.parent / "note.txt").write_text("")
    (root / "calibration").mkdir()
    (root / "calibration" / "x.json").write_text("{}")
    dirty = current(root, root / "baselines").dirty
    assert dirty == ("baselines/calibration/note.txt", "calibration/x.json")
