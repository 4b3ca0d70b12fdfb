"""Every rank reads its own tokens, exactly those of the file that the manifest describes.

python -m pytest tests/model/test_data.py
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model import data, manifest
from model.data import STDLIB_SHARD, BatchLoader, Shard, write_shard
from model.tokenizer import END_OF_TEXT, get_encoding


def counting_shard(length: int) -> Shard:
    """A shard whose token at position p is p."""
    return Shard(tokens=np.arange(length, dtype=np.uint16), vocab=2**16, encoding="positions")


@pytest.fixture
def copied_shard(tmp_path: Path) -> Path:
    for path in (STDLIB_SHARD, manifest.manifest_path(STDLIB_SHARD)):
        shutil.copy(path, tmp_path / path.name)
    return tmp_path / STDLIB_SHARD.name


@settings(max_examples=100, deadline=None)
@given(
    world_size=st.integers(1, 5),
    batch=st.integers(1, 4),
    seq=st.integers(1, 9),
    steps=st.integers(1, 6),
    length=st.integers(2, 400),
)
def test_ranks_partition_the_stream(world_size, batch, seq, steps, length):
    """Read rank by rank, step by step, the batches are the stream itself, wrapped at its end."""
    shard = counting_shard(length)
    loaders = [
        BatchLoader(shard, batch, seq, rank, world_size, "cpu") for rank in range(world_size)
    ]
    batches = [loader.next() for _ in range(steps) for loader in loaders]
    read = torch.cat([inputs.flatten() for inputs, _ in batches])
    following = torch.cat([targets.flatten() for _, targets in batches])
    positions = torch.arange(steps * world_size * batch * seq)
    assert torch.equal(read, positions % length)
    assert torch.equal(following, (positions + 1) % length)


def test_batches_have_the_promised_form():
    """Inputs and targets are int64, (batch, seq), on the device, and contiguous."""
    for tensor in BatchLoader(Shard.open(STDLIB_SHARD), 3, 17, 0, 1, "cpu").next():
        assert (tensor.dtype, tensor.shape, tensor.device.type) == (torch.int64, (3, 17), "cpu")
        assert tensor.is_contiguous()


def test_a_batch_is_not_overwritten_by_the_next():
    """A batch in hand keeps its tokens while later ones are read."""
    loader = BatchLoader(counting_shard(100), 2, 5, 0, 1, "cpu")
    inputs, _ = loader.next()
    kept = inputs.clone()
    loader.next()
    loader.next()
    assert torch.equal(inputs, kept)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_on_a_gpu_are_those_on_the_cpu():
    """The pinned, prefetched copies on a GPU hold the same tokens as plain tensors."""
    shard = Shard.open(STDLIB_SHARD)
    on_cpu = BatchLoader(shard, 8, 64, 1, 2, "cpu")
    on_gpu = BatchLoader(shard, 8, 64, 1, 2, "cuda")
    for _ in range(20):
        for expected, found in zip(on_cpu.next(), on_gpu.next(), strict=True):
            assert torch.equal(expected, found.cpu())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"seq": -1}, "seq is -1"),
        ({"world_size": 0}, "world_size is 0"),
        ({"rank": 2}, "rank is 2; possible: an int from 0 to 1"),
    ],
)
def test_an_impossible_loader_is_refused(change: dict[str, int], message: str):
    """A number out of range is a ValueError with the value found."""
    good = {"batch": 2, "seq": 4, "rank": 0, "world_size": 2}
    with pytest.raises(ValueError, match=message):
        BatchLoader(counting_shard(10), device="cpu", **{**good, **change})


def test_the_committed_shard():
    """The shard is intact, about a million real tokens, and its encoding turns it into source."""
    shard = Shard.open(STDLIB_SHARD)
    encoding = get_encoding(shard.encoding)
    assert len(shard.tokens) == 2**20
    assert int(shard.tokens.max()) < shard.vocab == encoding.n_vocab
    assert shard.tokens[0] == encoding.encode_single_token(END_OF_TEXT)
    assert len(np.unique(shard.tokens)) > 7000
    assert "import" in encoding.decode(shard.tokens[1:5000].tolist())


def test_the_shard_cannot_be_written_through():
    """The mapped tokens are read-only."""
    with pytest.raises(ValueError, match="read-only"):
        Shard.open(STDLIB_SHARD).tokens[0] = 1


def test_a_truncated_shard_is_refused(copied_shard: Path):
    """A truncated file is named with the size found and the command that rebuilds it."""
    copied_shard.write_bytes(copied_shard.read_bytes()[:-2])
    with pytest.raises(ValueError, match="has 2097150 bytes.*python -m model.data"):
        Shard.open(copied_shard)


def test_a_changed_shard_is_refused(copied_shard: Path):
    """A file with one bit flipped is named with the SHA-256 found and the command."""
    content = bytearray(copied_shard.read_bytes())
    content[1000] ^= 1
    copied_shard.write_bytes(content)
    found = manifest.sha256_of(copied_shard)
    with pytest.raises(ValueError, match=f"SHA-256 {found}.*python -m model.data"):
        Shard.open(copied_shard)


def test_a_missing_shard_is_refused(copied_shard: Path):
    """A missing file is named with the command that rebuilds it."""
    copied_shard.unlink()
    with pytest.raises(FileNotFoundError, match="stdlib8k.bin is missing; .*python -m model.data"):
        Shard.open(copied_shard)


def test_a_missing_manifest_is_refused(copied_shard: Path):
    """A shard without a manifest is not opened."""
    manifest.manifest_path(copied_shard).unlink()
    with pytest.raises(FileNotFoundError, match="stdlib8k.bin.json is missing"):
        Shard.open(copied_shard)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "is not a manifest"),
        ("[]", "lacks bytes, command, sha256"),
        ('{"bytes": 1}', "lacks command, sha256"),
    ],
)
def test_an_unreadable_manifest_is_refused(copied_shard: Path, text: str, message: str):
    """A manifest that is no manifest is an error that says what it lacks."""
    manifest.manifest_path(copied_shard).write_text(text)
    with pytest.raises(ValueError, match=message):
        Shard.open(copied_shard)


@pytest.mark.parametrize("facts", [{}, {"encoding": "stdlib8k", "tokens": 3, "vocab": 8193}])
def test_a_manifest_of_something_else_is_refused(tmp_path: Path, facts: dict[str, object]):
    """A verified file that is no shard, or holds another number of tokens, is not opened."""
    path = tmp_path / "other.bin"
    path.write_bytes(b"1234")
    manifest.write(path, command="touch", **facts)
    with pytest.raises(ValueError, match="lacks|holds 2 tokens, its manifest says 3"):
        Shard.open(path)


def test_text_becomes_a_shard(tmp_path: Path):
    """The command writes the encoded files, each behind an end-of-text token, and a manifest."""
    source, output = tmp_path / "notes.txt", tmp_path / "notes.bin"
    source.write_text("one step\n" * 5)
    data.main(["--encoding", "stdlib8k", "--output", str(output), str(source)])
    shard = Shard.open(output)
    encoding = get_encoding("stdlib8k")
    assert shard.encoding == "stdlib8k"
    assert encoding.decode(shard.tokens.tolist()) == END_OF_TEXT + "one step\n" * 5
    facts = json.loads(manifest.manifest_path(output).read_text())
    assert facts["source"] == "notes.txt"
    assert facts["command"].startswith("python -m model.data --encoding stdlib8k")


def test_a_shard_is_cut_at_max_tokens(tmp_path: Path):
    """No more tokens are written than asked for, and no text makes no shard."""
    path = tmp_path / "cut.bin"
    facts = {"encoding": "stdlib8k", "command": "cut", "source": "two texts"}
    assert write_shard(path, ["one two three", "four"], max_tokens=3, **facts) == 3
    with pytest.raises(ValueError, match="gave 0 tokens"):
        write_shard(path, [], max_tokens=3, **facts)
