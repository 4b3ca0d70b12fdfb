"""A run that was interrupted ends as if it had not been, and never goes on from a bad file.

python -m pytest tests/model/test_train.py
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import START, TINY, run_two_ranks, short_run

from model.checkpoint import CheckpointError, Checkpoints, load
from model.config import SIZES
from model.data.loader import BatchLoader
from model.data.shards import STDLIB_SHARD, Tokens
from model.train import main, plot
from model.training import LOG, Run, TrainingError, read_log

RUN = ["--device", "cpu", "--batch", "1", "--seq", "16", "--steps", "12", "--log-every", "1"]
RUN += ["--save-every", "1", "--eval-every", "6", "--eval-batches", "1", "--sample-tokens", "0"]


def leaves(value, name=""):
    """Every tensor and number of a nested state, by its path."""
    items, found = value.items() if isinstance(value, dict) else enumerate(value), {}
    for key, inner in items:
        deeper = isinstance(inner, dict | list | tuple)
        found |= leaves(inner, f"{name}/{key}") if deeper else {f"{name}/{key}": inner}
    return found


def assert_same_bits(found: Any, expected: Any) -> None:
    """Two states are equal in every bit of every tensor."""
    ours, theirs = leaves(found), leaves(expected)
    assert ours.keys() == theirs.keys() and any(isinstance(v, torch.Tensor) for v in ours.values())
    for path, value in theirs.items():
        same = torch.equal(ours[path], value) if torch.is_tensor(value) else ours[path] == value
        assert same, path


def losses(folder: Path) -> list[tuple[int, float]]:
    """Steps and their losses, as logged."""
    return [(line["step"], line["loss"]) for line in read_log(folder) if "loss" in line]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was not stopped; no test changes it."""
    folder: Path = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(SIZES, "tiny", TINY)
        Run(short_run(), folder).train()
    return folder


@pytest.fixture
def trained(finished: Path, tmp_path: Path) -> Path:
    """The folder of a finished run with two checkpoints."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def in_two(folder: Path, at: int) -> dict[str, Any]:
    """A run that ends after ``at`` steps, gone on with by another object; its last checkpoint."""
    first = Run(short_run(), folder, lambda _: setattr(first, "stop", first.step >= at))
    first.train()
    assert first.step == at
    second = Run(short_run(), folder)
    second.resume(load(Checkpoints(folder).paths()[-1]))
    second.train()
    return load(Checkpoints(folder).paths()[-1])


@pytest.mark.parametrize("at", [2, 4, 6])
def test_a_resumed_run_ends_bit_for_bit_as_one_that_was_not_stopped(
    finished: Path, tmp_path: Path, at: int
):
    """Parameters, optimizer, position, random numbers; and the log has each step once, equal."""
    found = in_two(tmp_path / "parts", at)
    expected = load(Checkpoints(finished).paths()[-1])
    assert (found["step"], expected["step"]) == (8, 8)
    assert_same_bits(found, expected)
    assert losses(tmp_path / "parts") == losses(finished)
    assert [step for step, _ in losses(tmp_path / "parts")] == list(range(1, 9))


def one_rank(rank: int, folder: str) -> None:
    """One of two ranks: a whole run, and the same in two parts."""
    torch.set_num_threads(1)
    SIZES["tiny"] = TINY
    Run(short_run(), Path(folder, "whole")).train()
    first = Run(short_run(), Path(folder, "parts"))
    first.stop = rank == 1  # one is asked: both stop, after the first line
    first.train()
    second = Run(short_run(), Path(folder, "parts"))
    second.resume(load(Checkpoints(Path(folder, "parts")).paths()[-1]))
    second.train()


def test_two_ranks_resume_bit_for_bit(tmp_path: Path):
    """The same with two ranks that exchange gradients; one of them was asked to stop."""
    run_two_ranks(one_rank, tmp_path)
    found, expected = (
        load(Checkpoints(tmp_path / name).paths()[-1]) for name in ("parts", "whole")
    )
    assert found["step"] == 8 and len(found["rng"]) == 2
    assert_same_bits(found, expected)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    alone = Run(short_run(), tmp_path / "alone")
    with pytest.raises(CheckpointError, match="number of ranks is 1 here, the checkpoint has 2"):
        alone.resume(found)


def test_the_step_is_the_guarded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On the same batches, at a constant rate, losses are those of the workload that the suite
    measures, to the last bit."""
    from model import workloads

    options = short_run(warm_up_steps=0, min_lr_share=1.0)
    run = Run(options, tmp_path)
    assert type(run.workload) is workloads.TrainStep
    run.train()
    guarded = workloads.train_step(
        **{name: getattr(options, name) for name in ("size", "batch", "seq", "precision")},
        **{"compile": False, "device": "cpu", "micro_steps": 2, "lr": options.lr},
    )
    assert type(guarded) is workloads.TrainStep
    tokens, _ = Tokens.open(STDLIB_SHARD).split(options.val_fraction)
    guarded._loader = BatchLoader(tokens, 2, 16, 0, 1, "cpu", scatter=True)
    assert [loss for _, loss in losses(tmp_path)] == [float(guarded.step()) for _ in range(8)]


def test_the_host_waits_once_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Values are read from the device once for all steps of a line, and once a validation."""
    reads: list[str] = []
    for name in ("item", "tolist", "__float__", "__bool__", "cpu"):
        real = getattr(torch.Tensor, name)

        def counted(tensor, *args, _real=real, _name=name):
            reads.append(_name)
            return _real(tensor, *args)

        monkeypatch.setattr(torch.Tensor, name, counted)
    Run(short_run(save_every=8), tmp_path).train()
    assert [name for name in reads if name != "item"].count("tolist") == 4
    assert reads.count("__float__") == 2 and "cpu" not in reads


def test_validation_does_not_train(tmp_path: Path):
    """However often it happens, the run is the same; its loss is that of the bare model."""
    Run(short_run(eval_every=8), tmp_path / "a").train()
    Run(short_run(eval_every=1, sample_tokens=5), tmp_path / "b").train()
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    log = read_log(tmp_path / "b")
    assert len([line for line in log if "val_loss" in line]) == 8
    assert all("endoftext" in line["sample"] for line in log if "sample" in line)


def test_the_schedule():
    """Up by equal steps, down along half a cosine, never below its share."""
    options = short_run(steps=103, warm_up_steps=3, lr=1.0)
    rates = [options.learning_rate(step) for step in range(104)]
    assert rates[:4] == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert rates[53] == pytest.approx(0.55)
    assert rates[103] == pytest.approx(0.1) == options.learning_rate(500)
    assert all(later <= earlier for earlier, later in zip(rates[3:], rates[4:], strict=False))


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path):
    """The step and the rate are named, and no checkpoint of it is written."""
    run = Run(short_run(lr=1e30, warm_up_steps=0, grad_clip=1e30), tmp_path)
    with pytest.raises(TrainingError, match=r"step \d: loss (nan|inf).*lower --lr \(now"):
        run.train()
    assert not Checkpoints(tmp_path).paths()


@pytest.mark.parametrize(("damage", "message"), [
    (lambda data: data[: len(data) // 2], "is truncated or no checkpoint"),
    (lambda data: b"", "is truncated or no checkpoint"),
    (lambda data: b"some text", "is truncated or no checkpoint"),
    (lambda data: data[:50_000] + b"\xff" + data[50_001:], "is damaged in "),
])  # fmt: skip
def test_a_damaged_checkpoint_is_refused(
    trained: Path, damage, message: str, capsys, monkeypatch: pytest.MonkeyPatch
):
    """It is named, and the one before it, which still works."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # a curve takes longer than the run
    older, newest = Checkpoints(trained).paths()
    newest.write_bytes(damage(newest.read_bytes()))
    assert main(["--out", str(trained), "--resume", "--device", "cpu"]) == 1
    said = capsys.readouterr().err
    assert f"{newest} {message}" in said and f"the one before it: {older}" in said
    arguments = ["--out", str(trained), "--resume-from", str(older)]
    assert main([*arguments, "--size", "nano"]) == 1
    assert "the model's shape is" in capsys.readouterr().err
    SIZES["nano"], kept = TINY, SIZES["nano"]
    try:
        assert main([*arguments, "--size", "nano"]) == 0
    finally:
        SIZES["nano"] = kept
    assert load(newest)["step"] == 8


def test_a_foreign_file_is_refused(tmp_path: Path):
    """What torch.save wrote for somebody else is no checkpoint; a missing file is none either."""
    torch.save({"model": {}}, tmp_path / "checkpoint_00000001.pt")
    with pytest.raises(CheckpointError, match="is no checkpoint of model.train"):
        load(tmp_path / "checkpoint_00000001.pt")
    with pytest.raises(CheckpointError, match="no such file"):
        load(tmp_path / "checkpoint_00000002.pt")


def test_other_data_are_not_gone_on_with(trained: Path):
    """A position says nothing in another stream."""
    content = load(Checkpoints(trained).paths()[-1])
    run = Run(short_run(val_fraction=0.1), trained)
    with pytest.raises(CheckpointError, match="tokens to learn from is 943718 here"):
        run.resume(content)


def test_tokens_without_a_place_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A vocabulary larger than the model's would index out of its table."""
    monkeypatch.setitem(SIZES, "tiny", replace(TINY, vocab_size=8192))
    with pytest.raises(ValueError, match="has 8193 ids .*size tiny only 8192"):
        Run(short_run(), tmp_path)


def test_only_the_newest_checkpoints_stay(tmp_path: Path):
    """Two by default; what a killed process left half written goes."""
    (tmp_path / ".checkpoint_00000001.pt.x").write_text("half")
    for step in (1, 2, 3):
        Checkpoints(tmp_path).save(step, {"state": torch.ones(3)})
    names = ["checkpoint_00000002.pt", "checkpoint_00000003.pt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_save_that_fails_loses_nothing(tmp_path: Path):
    """What cannot be written leaves the older checkpoint and nothing half."""
    Checkpoints(tmp_path).save(1, {"state": torch.ones(3)})
    with pytest.raises(Exception, match="pickle"):
        Checkpoints(tmp_path).save(2, {"state": lambda: None})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_00000001.pt"]


def test_a_folder_with_checkpoints_is_not_begun_anew(trained: Path, capsys):
    """Without --resume nothing in it is touched; impossible options are one line each."""
    before = {path.name: path.read_bytes() for path in trained.iterdir()}
    assert main(["--out", str(trained), *RUN]) == 1
    assert "has checkpoints: add --resume, or take another --out" in capsys.readouterr().err
    assert main(["--out", str(trained / "x"), *RUN, "--steps", "0"]) == 1
    assert "steps is 0; possible: an int of 1 or more" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in trained.iterdir()} == before


def test_a_run_that_has_nothing_to_resume_says_so(tmp_path: Path, capsys):
    """It begins, as a job that may be preempted wants it; a mistyped --out is seen at once."""
    assert main(["--out", str(tmp_path / "x"), "--resume", *RUN]) == 0
    assert "x has no checkpoint: beginning at step 0" in capsys.readouterr().out


def test_a_signal_ends_a_run_with_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """SIGTERM: the line under way is finished, what it did is saved, and the status is 0."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context(START)
    arguments = ["--out", str(tmp_path), *RUN, "--steps", "100000", "--save-every", "100000"]
    process = context.Process(target=main, args=(arguments,))
    process.start()
    while process.is_alive() and len(losses(tmp_path)) < 2:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    process.join()
    assert process.exitcode == 0
    assert load(Checkpoints(tmp_path).paths()[-1])["step"] == losses(tmp_path)[-1][0] >= 2


def test_torchrun_trains_with_two_ranks(tmp_path: Path):
    """The command as it stands in the documentation; one log, one checkpoint, both ranks' data."""
    arguments = ["--standalone", "--nproc-per-node=2", "-m", "model.train"]
    arguments += ["--out", str(tmp_path / "out"), *RUN, "--steps", "2", "--resume"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    printed = done.stdout
    assert done.returncode == 0, printed
    assert printed.count("step 2/2  loss") == printed.count("beginning at step 0") == 1
    content = load(Checkpoints(tmp_path / "out").paths()[-1])
    assert (content["step"], len(content["rng"])) == (2, 2)
    assert content["state"]["position"] == 2 * 2 * 16  # steps, ranks, tokens of a batch


@pytest.mark.parametrize("command", ["train", "generate"])
def test_every_option_has_its_help(command: str):
    """A list of names alone would tell nobody what they are for."""
    parser = importlib.import_module(f"model.{command}")._parser()
    assert [one.dest for one in parser._actions if not one.help] == []


@pytest.mark.parametrize("ranks", ["", "1", "2"])
def test_the_fast_step_trains_one_rank_unless_told_otherwise(ranks, monkeypatch):
    """``--no-fast`` asks for the reference; a CPU and several ranks fall back to it."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if ranks:
        monkeypatch.setenv("WORLD_SIZE", ranks)
    parser = importlib.import_module("model.train")._parser()
    given = ["--out", "run"]
    assert parser.parse_args(given).fast is (ranks != "2")
    assert parser.parse_args([*given, "--fast"]).fast
    assert not parser.parse_args([*given, "--no-fast"]).fast


def test_the_curve_is_drawn(trained: Path):
    """With training and validation losses and the entropy; without matplotlib the log is named."""
    pytest.importorskip("matplotlib")
    drawn = plot(trained).read_text()
    assert drawn.startswith("<?xml") and drawn.count("<path") > 5


def test_a_log_that_was_cut_off_is_read_up_to_there(trained: Path):
    """A kill may leave half a line."""
    whole = read_log(trained)
    path = trained / LOG
    path.write_text(path.read_text()[:-7])
    assert read_log(trained) == whole[:-1]
    assert json.dumps(whole[0]["unigram_entropy_nats"])[:4] == "6.68"
