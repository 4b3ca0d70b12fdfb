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

from model.data import __main__ as command
from model.data import manifest
from model.data.loader import BatchLoader
from model.data.shards import STDLIB_SHARD, Tokens, write_shard
from model.data.tokenizer import END_OF_TEXT, get_encoding


def counting(length: int, *cuts: int) -> Tokens:
    """A stream whose token at position p is p, in parts."""
    parts = np.split(np.arange(length, dtype=np.uint16), sorted(cuts))
    return Tokens(tuple(parts), vocab=2**16, encoding="positions")


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
    cuts=st.lists(st.integers(0, 400), max_size=3),
)
def test_ranks_partition_the_stream(world_size, batch, seq, steps, length, cuts):
    """Read rank by rank, step by step, the batches are the stream itself, wrapped at its end, in
    however many shards it is kept."""
    shard = counting(length, *(min(cut, length) for cut in cuts))
    loaders = [
        BatchLoader(shard, batch, seq, rank, world_size, "cpu") for rank in range(world_size)
    ]
    batches = [loader.next() for _ in range(steps) for loader in loaders]
    read = torch.cat([inputs.flatten() for inputs, _ in batches])
    following = torch.cat([targets.flatten() for _, targets in batches])
    positions = torch.arange(steps * world_size * batch * seq)
    assert torch.equal(read, positions % length)
    assert torch.equal(following, (positions + 1) % length)


@settings(max_examples=100, deadline=None)
@given(
    world_size=st.integers(1, 3),
    batch=st.integers(1, 4),
    seq=st.integers(1, 9),
    steps=st.integers(1, 9),
    spare=st.integers(0, 8),
)
def test_scattered_sequences_are_all_and_each_once(world_size, batch, seq, steps, spare):
    """The ranks' batches of one pass are the sequences of the stream, and then come again; what
    follows a token is what follows it there."""
    sequences = world_size * batch * steps
    shard = counting(max(2, sequences * seq + min(spare, seq - 1)))
    sequences = max(1, len(shard) // seq)
    loaders = [
        BatchLoader(shard, batch, seq, rank, world_size, "cpu", scatter=True)
        for rank in range(world_size)
    ]
    passes = []
    for _ in range(2):
        batches = [loader.next() for _ in range(steps) for loader in loaders]
        for inputs, targets in batches:
            assert torch.equal(targets, (inputs + 1) % len(shard))
        passes.append(torch.cat([inputs for inputs, _ in batches]))
    if sequences == world_size * batch * steps:
        assert sorted(passes[0][:, 0].tolist()) == [seq * n for n in range(sequences)]
        assert torch.equal(*passes)


def test_scattered_neighbours_are_far_apart():
    """The sequences of a batch come from all over the stream."""
    inputs, _ = BatchLoader(counting(64_000), 16, 10, 0, 1, "cpu", scatter=True).next()
    starts = np.sort(inputs[:, 0].numpy())
    assert np.diff(starts).min() > 64_000 / 16 / 3 and np.diff(starts).max() < 64_000 / 16 * 3


def test_batches_have_the_promised_form():
    """Inputs and targets are int64, (batch, seq), on the device, and contiguous."""
    for tensor in BatchLoader(Tokens.open(STDLIB_SHARD), 3, 17, 0, 1, "cpu").next():
        assert (tensor.dtype, tensor.shape, tensor.device.type) == (torch.int64, (3, 17), "cpu")
        assert tensor.is_contiguous()


def test_a_batch_is_not_overwritten_by_the_next():
    """A batch in hand keeps its tokens while later ones are read."""
    loader = BatchLoader(counting(100), 2, 5, 0, 1, "cpu")
    inputs, _ = loader.next()
    kept = inputs.clone()
    loader.next()
    loader.next()
    assert torch.equal(inputs, kept)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_on_a_gpu_are_those_on_the_cpu():
    """The pinned, prefetched copies on a GPU hold the same tokens as plain tensors."""
    shard = Tokens.open(STDLIB_SHARD)
    on_cpu = BatchLoader(shard, 8, 64, 1, 2, "cpu")
    on_gpu = BatchLoader(shard, 8, 64, 1, 2, "cuda")
    for _ in range(20):
        for expected, found in zip(on_cpu.next(), on_gpu.next(), strict=True):
            assert torch.equal(expected, found.cpu())


@pytest.mark.parametrize(("change", "message"), [
    ({"batch": 0}, "batch is 0"),
    ({"seq": -1}, "seq is -1"),
    ({"world_size": 0}, "world_size is 0"),
    ({"rank": 2}, "rank is 2; possible: an int from 0 to 1"),
])  # fmt: skip
def test_an_impossible_loader_is_refused(change: dict[str, int], message: str):
    """A number out of range is a ValueError with the value found."""
    good = {"batch": 2, "seq": 4, "rank": 0, "world_size": 2}
    with pytest.raises(ValueError, match=message):
        BatchLoader(counting(10), device="cpu", **{**good, **change})


def test_the_committed_shard():
    """The shard is intact, about a million real tokens, and its encoding turns it into source."""
    shard = Tokens.open(STDLIB_SHARD)
    encoding = get_encoding(shard.encoding)
    (ids,) = shard.parts
    assert len(shard) == len(ids) == 2**20
    assert int(ids.max()) < shard.vocab == encoding.n_vocab
    assert ids[0] == encoding.encode_single_token(END_OF_TEXT)
    assert len(np.unique(ids)) > 7000
    assert "import" in encoding.decode(ids[1:5000].tolist())


def test_the_shard_cannot_be_written_through():
    """The mapped tokens are read-only."""
    with pytest.raises(ValueError, match="read-only"):
        Tokens.open(STDLIB_SHARD).parts[0][0] = 1


def cut(shard: Path) -> None:
    """Take the last token away."""
    shard.write_bytes(shard.read_bytes()[:-2])


def flip(shard: Path) -> None:
    """Change one bit."""
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)


def tell(text: str):
    """Put a text in the manifest's place."""
    return lambda shard: manifest.manifest_path(shard).write_text(text)


@pytest.mark.parametrize(("damage", "words"), [
    (cut, "has 2097150 bytes.*python -m model.data"),
    (flip, "SHA-256 FOUND.*python -m model.data"),
    (Path.unlink, "stdlib8k.bin is missing; .*python -m model.data"),
    (lambda shard: manifest.manifest_path(shard).unlink(), "stdlib8k.bin.json is missing"),
    (tell("not json"), "is not a manifest"),
    (tell("[]"), "lacks bytes, command, sha256"),
    (tell('{"bytes": 1}'), "lacks command, sha256"),
])  # fmt: skip
def test_a_shard_that_is_not_whole_is_refused(copied_shard: Path, damage, words: str):
    """By its name, with what was found or is missing, and the command that rebuilds it."""
    damage(copied_shard)
    found = manifest.sha256_of(copied_shard) if copied_shard.exists() else ""
    with pytest.raises((ValueError, FileNotFoundError), match=words.replace("FOUND", found)):
        Tokens.open(copied_shard)


def test_a_mistyped_name_is_not_a_missing_manifest(tmp_path: Path):
    """Neither a shard nor a folder of that name: the name is what is wrong."""
    with pytest.raises(FileNotFoundError, match="there is no .*shrads; make shards with: python"):
        Tokens.open(tmp_path / "shrads")


@pytest.mark.parametrize("facts", [{}, {"encoding": "stdlib8k", "tokens": 3, "vocab": 8193}])
def test_a_manifest_of_something_else_is_refused(tmp_path: Path, facts: dict[str, object]):
    """A verified file that is no shard, or holds another number of tokens, is not opened."""
    path = tmp_path / "other.bin"
    path.write_bytes(b"1234")
    manifest.write(path, command="touch", **facts)
    with pytest.raises(ValueError, match="lacks|holds 2 tokens, its manifest says 3"):
        Tokens.open(path)


def test_text_becomes_a_shard(tmp_path: Path):
    """The command writes the encoded files, each behind an end-of-text token, and a manifest."""
    source, output = tmp_path / "notes.txt", tmp_path / "notes.bin"
    source.write_text("one step\n" * 5)
    command.main(["--encoding", "stdlib8k", "--output", str(output), str(source)])
    shard = Tokens.open(output)
    encoding = get_encoding("stdlib8k")
    assert shard.encoding == "stdlib8k"
    assert encoding.decode(shard.read(0, len(shard)).tolist()) == END_OF_TEXT + "one step\n" * 5
    facts = json.loads(manifest.manifest_path(output).read_text())
    assert facts["source"] == "notes.txt"
    assert facts["command"].startswith("python -m model.data --encoding stdlib8k")


def test_own_text_is_whole_and_leaves_the_suites_shard_alone(tmp_path: Path, monkeypatch, capsys):
    """Longer than what is kept of the standard library, and into a folder that is made; without an
    output the command is refused.
    """
    monkeypatch.setattr(command, "STDLIB_TOKENS", 20)
    source, output = tmp_path / "notes.txt", tmp_path / "shards" / "mine.bin"
    source.write_text("step " * 100)
    before = manifest.manifest_path(STDLIB_SHARD).read_bytes()
    with pytest.raises(SystemExit, match="2"):
        command.main([str(source)])
    assert "--output is missing" in capsys.readouterr().err
    assert manifest.manifest_path(STDLIB_SHARD).read_bytes() == before
    assert command.main(["--output", str(output), str(source)]) == 0
    assert len(Tokens.open(output)) > 100
    command.main(["--output", str(output), "--max-tokens", "7", str(source)])
    assert len(Tokens.open(output)) == 7
    with pytest.raises(SystemExit, match="2"):
        command.main(["--output", str(output), "--max-tokens", "0", str(source)])
    assert len(Tokens.open(output)) == 7


def test_a_shard_is_cut_at_max_tokens(tmp_path: Path):
    """No more tokens are written than asked for, and no text makes no shard."""
    path = tmp_path / "cut.bin"
    facts = {"encoding": "stdlib8k", "command": "cut", "source": "two texts"}
    assert write_shard(path, ["one two three", "four"], max_tokens=3, **facts) == 3
    with pytest.raises(ValueError, match="gave 0 tokens"):
        write_shard(path, [], max_tokens=3, **facts)


@settings(max_examples=100, deadline=None)
@given(
    position=st.integers(0, 500),
    steps=st.integers(1, 5),
    world_size=st.integers(1, 3),
    data=st.data(),
)
def test_a_loader_goes_on_where_another_was(position, steps, world_size, data):
    """After seek every rank hands out what the loader that gave the position would have."""
    rank = data.draw(st.integers(0, world_size - 1))
    first, second = (BatchLoader(counting(101), 2, 5, rank, world_size, "cpu") for _ in range(2))
    first.seek(position)
    for _ in range(steps):
        first.next()
    second.seek(first.position)
    for _ in range(3):
        assert torch.equal(torch.stack(first.next()), torch.stack(second.next()))


@settings(max_examples=50, deadline=None)
@given(st.integers(20, 300), st.lists(st.integers(0, 300), max_size=3), st.floats(0.1, 0.9))
def test_a_split_loses_nothing(length, cuts, fraction):
    """The two pieces, one after the other, are the stream."""
    whole = counting(length, *(min(cut, length) for cut in cuts))
    first, second = whole.split(fraction)
    assert abs(len(second) - length * fraction) <= 1
    joined = np.concatenate([first.read(0, len(first)), second.read(0, len(second))])
    assert (joined == np.arange(length)).all()


def test_unigram_entropy_is_that_of_the_frequencies():
    """Four ids equally often are log 4; one id alone is nothing."""
    even = Tokens((np.array([0, 1, 2, 3] * 5, dtype=np.uint16),), vocab=9, encoding="x")
    assert even.unigram_entropy() == pytest.approx(np.log(4))
    one = Tokens((np.zeros(7, dtype=np.uint16),), vocab=9, encoding="x")
    assert one.unigram_entropy() == 0


def test_a_folder_of_shards_is_one_stream(tmp_path: Path):
    """Read in the order of the names; another encoding among them, or no shard, is an error."""
    for name, text in (("b", "two words"), ("a", "one word")):
        facts = {"encoding": "stdlib8k", "command": "made", "source": name}
        write_shard(tmp_path / f"{name}.bin", [text], max_tokens=9, **facts)
    tokens = Tokens.open(tmp_path)
    text = get_encoding("stdlib8k").decode(tokens.read(0, len(tokens)).tolist())
    assert text == f"{END_OF_TEXT}one word{END_OF_TEXT}two words"
    described = manifest.manifest_path(tmp_path / "b.bin")
    described.write_text(described.read_text().replace('"stdlib8k"', '"other"'))
    with pytest.raises(ValueError, match="several encodings: other, stdlib8k"):
        Tokens.open(tmp_path)
    with pytest.raises(FileNotFoundError, match="has no .*python -m model.data"):
        Tokens.open(tmp_path / "..")


def test_text_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A file that is not UTF-8 is named, and no shard is left."""
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 9)
    output = tmp_path / "x.bin"
    assert command.main(["--output", str(output), str(tmp_path)]) == 1
    assert "latin.txt is not UTF-8 text" in capsys.readouterr().err
    assert not output.exists()
