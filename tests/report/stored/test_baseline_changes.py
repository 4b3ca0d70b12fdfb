"""What a tree changes in baselines and waivers: old -> new, an entry a line."""

import pytest
from builders import (
    CASE_ID,
    baseline_file,
    entry,
    epoch,
    one_recording,
    recording,
)

from stepguard.core.permission import Permission
from stepguard.plugin.baseline_folder import changes
from stepguard.storage import baseline_files
from stepguard.storage.baseline_files import add_waiver, today
from stepguard.storage.json_file import FileError


@pytest.fixture
def folders(tmp_path):
    """Two folders of baselines that hold the same."""
    both = tmp_path / "old", tmp_path / "new"
    for folder in both:
        baseline_files.save(folder / "h200x1.json", baseline_file())
    return both


def edited(**cases):
    """A file with these entries beside or in place of the usual one."""
    return baseline_file(cases={CASE_ID: entry(), **cases})


@pytest.mark.parametrize(("cases", "said"), [
    ({CASE_ID: entry((263.1,))}, f"{CASE_ID}: step_ms 250.000 -> 263.100"),
    ({CASE_ID: entry((250.0, 250.0))}, f"{CASE_ID}: recordings 1 -> 2"),
    ({CASE_ID: entry(epochs=[epoch(), epoch(reason="fused")])},
     f"{CASE_ID}: levels 1 -> 2, reason 'first recording' -> 'fused'"),
    ({CASE_ID: entry(epochs=[epoch(recordings=[recording(commit="b" * 40)])])},
     f"{CASE_ID}: commit 000000000000 -> bbbbbbbbbbbb"),
    ({CASE_ID: one_recording(by_rank={"host_syncs_per_step": [3]})},
     f"{CASE_ID}: other fields, which git diff shows"),
    ({CASE_ID: entry(margins_pct=[1.0, 3.0])}, f"{CASE_ID}: margins 0.2 and 0.5 % -> 1 and 3 %"),
    ({"b[x]": entry()}, "b[x]: none -> recorded, step_ms 250.000"),
])  # fmt: skip
def test_an_entry_is_told_by_what_it_changes(folders, cases, said):
    """Its level first, then what the level rests on; the other way round it is the reverse."""
    old, new = folders
    assert changes(old, new) == []
    baseline_files.save(new / "h200x1.json", edited(**cases))
    (line,) = changes(old, new)
    assert line.startswith(f"h200x1.json: {said}")
    (back,) = changes(new, old)
    assert back.startswith("h200x1.json: ")


def test_many_figures_are_counted(folders):
    """Four are shown, and how many more there are."""
    counters = {name: 2 * n + 1 for name, n in recording().counters.items()}
    one = entry(epochs=[epoch(recordings=[recording(counters=counters)])])
    baseline_files.save(folders[1] / "h200x1.json", edited(**{CASE_ID: one}))
    (line,) = changes(*folders)
    assert line.count("->") == 5 and f"other figures 0 -> {len(counters) - 4} changed" in line


def test_a_file_that_is_new_or_gone(folders):
    """Each of its entries is a line."""
    (folders[1] / "h200x1.json").rename(folders[1] / "h100x1.json")
    gone, new = changes(*folders)[::-1]
    assert gone.startswith(f"h200x1.json: {CASE_ID}: recorded, ") and gone.endswith(" -> none")
    assert new.startswith(f"h100x1.json: {CASE_ID}: none -> recorded, ")


def test_waivers(folders):
    """A waiver that is new is told; one that both have is not."""
    old, new = folders
    one = Permission(
        case=CASE_ID, metric="step_ms", limit_pct=6.0, reason="r", expires=today(), who="w"
    )
    add_waiver(new, one, today())
    (line,) = changes(old, new)
    assert line.startswith(
        f"waivers.json: {CASE_ID}, step_ms: declared here: step_ms up to +6.00 % until"
    )
    add_waiver(old, one, today())
    assert changes(old, new) == []


def test_a_file_that_cannot_be_trusted_is_an_error(folders):
    """On whichever side."""
    (folders[0] / "h200x1.json").write_text("{")
    for both in (folders, folders[::-1]):
        with pytest.raises(FileError):
            changes(*both)
