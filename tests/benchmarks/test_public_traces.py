"""public_traces: two readings of a file agree, are refused together, or fail the run."""

import gzip
import json

import kineto
import pytest

from benchmarks import plain_trace, public_traces


def written(path, packed=False):
    """A file of three complete steps."""
    text = kineto.three_steps()
    path.write_bytes(gzip.compress(text) if packed else text)
    return path


def test_a_file_is_read_twice_and_equal(tmp_path):
    """By steps, kernels, idle time and exchange; and each reading is the truth."""
    path = written(tmp_path / "rank0.json.gz", packed=True)
    for read in (public_traces.by_stepguard, plain_trace.figures):
        (found,) = read(path)
        assert found.step_us == pytest.approx([1000.0] * 3)
        assert found.names_us == pytest.approx({"nvjet": 1500, "ncclDevKernel_AllReduce": 300})
        assert (found.idle_us, found.exchanged_us) == pytest.approx((1200, 300))


@pytest.mark.parametrize(
    ("key", "said"),
    [("dur", "us, "), ("name", "us, "), ("correlation", "refused by plain JSON alone")],
)
def test_a_figure_that_differs_fails_the_run(tmp_path, monkeypatch, capsys, key, said):
    """A reader that loses a record, names it otherwise, or makes it longer."""
    written(tmp_path / "rank0.json")
    plain = plain_trace.from_json

    def wrong(path):
        for event in plain(path):
            if event.kind == "kernel" and "nvjet" in event.name:
                event = event._replace(
                    **{"dur": {"end": event.end + 9}, "name": {"name": "other"}}.get(
                        key, {"correlation": None}
                    )
                )
            yield event

    monkeypatch.setattr(plain_trace, "from_json", wrong)
    assert public_traces.main([str(tmp_path)]) == 1
    assert said in capsys.readouterr().out


def test_what_no_profiler_wrote_is_refused_by_both(tmp_path, capsys):
    """Another tool's JSON, and half a file; one that stepguard alone refuses fails the run."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    written(folder / "a.json")
    (folder / "b.json").write_text(json.dumps({"name": "MI300X"}))
    (folder / "c.json").write_bytes((folder / "a.json").read_bytes()[:400])
    out = tmp_path / "out.json"
    assert public_traces.main([str(folder), "--out", str(out)]) == 0
    assert "| theirs | 3 | 1 | 3 | 2 | 0 |" in capsys.readouterr().out
    assert [row["said"] for row in json.loads(out.read_text())] == ["equal", "refused", "refused"]
