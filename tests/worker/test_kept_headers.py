"""Headers that the compiler precompiles outlast the launch that made them, whole ones alone."""

import tempfile

import pytest

from stepguard.worker.compile_caches import keep_headers, take_kept_headers


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """``launch(name)`` goes on as a launch with a TMPDIR of its own; returns torch's folder."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("USER", "me")
    monkeypatch.setenv("LOGNAME", "me")

    def begin(name):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        take_kept_headers()
        return tmp_path / name / "torchinductor_me" / "precompiled_headers"

    return begin


def test_the_next_launch_finds_what_one_precompiled(launch, tmp_path):
    """Header and precompiled header, at their names; what came from the cache is not kept again."""
    own = launch("first")
    (own / "x.h").write_text("#include <a>\n")
    (own / "x.h.gch").write_bytes(b"compiled")
    keep_headers()
    kept = tmp_path / "cache" / "precompiled_headers"
    assert sorted(path.name for path in kept.iterdir()) == ["x.h", "x.h.gch"]
    before = [path.stat().st_mtime_ns for path in kept.iterdir()]
    own = launch("second")
    assert (own / "x.h.gch").read_bytes() == b"compiled" and (own / "x.h").is_file()
    keep_headers()
    assert [path.stat().st_mtime_ns for path in kept.iterdir()] == before


def test_half_a_header_is_never_found(launch, tmp_path, monkeypatch):
    """Whoever is killed while a header is kept, by a full disk say, leaves none; nothing fails."""
    own = launch("first")
    for name in ("x.h", "x.h.gch"):
        (own / name).write_bytes(b"whole")

    def half(source, target):
        target.write(b"wh")
        raise OSError(28, "planted")

    monkeypatch.setattr("shutil.copyfileobj", half)
    keep_headers()
    assert list(launch("second").iterdir()) == []


def test_ranks_of_a_launch_share_what_is_kept(launch):
    """The second rank finds the first one's links there."""
    own = launch("first")
    for name in ("x.h", "x.h.gch"):
        (own / name).write_bytes(b"whole")
    keep_headers()
    assert launch("second") == launch("second")


def test_without_a_folder_for_them_nothing_fails(launch, tmp_path, monkeypatch):
    """A cache that cannot be written to costs seconds, and no launch."""
    own = launch("first")
    (own / "x.h.gch").write_bytes(b"whole")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/proc/none")
    take_kept_headers()
    keep_headers()
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    take_kept_headers()
