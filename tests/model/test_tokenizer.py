"""The encoding loses nothing, is learned correctly, and is never silently another one.

python -m pytest tests/model/test_tokenizer.py
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from model.data import manifest, tokenizer
from model.data.corpus import stdlib_texts
from model.data.tokenizer import END_OF_TEXT, WORD_PATTERN, get_encoding, load_ranks, make_encoding
from model.data.train_tokenizer import train, write_ranks

TEXTS = [
    "def step(self):\n    return self.loss\n\n    def stop(self):\n        return self.step()\n",
    "aaaaaaa aaab abcabcabc    \tthe then there\r\n",
    "na\u00efve fa\u00e7ade \N{SNOWMAN} 12345 __init__ != -> ==\n",
]


def naive_ranks(texts: list[str], num_ranks: int) -> dict[bytes, int]:
    """Byte-pair encoding as its definition reads: count all pairs anew for every token."""
    words: Counter[tuple[bytes, ...]] = Counter()
    for text in texts:
        for word in re.findall(WORD_PATTERN, text):
            words[tuple(bytes([value]) for value in word.encode())] += 1
    ranks = {bytes([value]): value for value in range(256)}
    while len(ranks) < num_ranks:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        ranks.setdefault(b"".join(best), len(ranks))
        merged: Counter[tuple[bytes, ...]] = Counter()
        for word, count in words.items():
            merged[naive_merge(word, best)] += count
        words = merged
    return ranks


def naive_merge(word: tuple[bytes, ...], pair: tuple[bytes, bytes]) -> tuple[bytes, ...]:
    result: list[bytes] = []
    rest = list(word)
    while rest:
        if tuple(rest[:2]) == pair:
            result.append(rest.pop(0) + rest.pop(0))
        else:
            result.append(rest.pop(0))
    return tuple(result)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_round_trip(text: str):
    """Any Unicode text comes back unchanged."""
    encoding = get_encoding("stdlib8k")
    assert encoding.decode(encoding.encode_ordinary(text)) == text


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_words_cover_the_text(text: str):
    """The word pattern cuts a text into pieces without losing a character."""
    assert "".join(re.findall(WORD_PATTERN, text)) == text


def test_the_committed_encoding():
    """stdlib8k has 8192 ranks with the 256 bytes, then end-of-text, and compresses its source."""
    encoding = get_encoding("stdlib8k")
    assert encoding.name == "stdlib8k"
    assert encoding.n_vocab == 8193
    assert encoding.encode_single_token(END_OF_TEXT) == 8192
    assert {encoding.encode_single_token(bytes([value])) for value in range(256)} == set(range(256))
    text = "".join(text for _, text in islice(stdlib_texts(), 20))
    assert len(text.encode()) / len(encoding.encode_ordinary(text)) > 2.5


def test_incremental_training_equals_the_definition():
    """Training with kept-up counts learns the same ranks as counting anew for every token."""
    assert train(TEXTS, 310) == naive_ranks(TEXTS, 310)


def test_training_does_not_depend_on_the_order_of_texts():
    """Shuffled texts give identical ranks, in identical order."""
    assert list(train(TEXTS, 300)) == list(train(TEXTS[::-1], 300))


def test_trained_ranks_are_what_tiktoken_applies():
    """A frequent word ends as one token of the encoding made from the trained ranks."""
    encoding = make_encoding("tiny", train(["return self " * 50], 266))
    assert [encoding.decode([i]) for i in encoding.encode_ordinary("return self")] == [
        "return",
        " self",
    ]


@pytest.mark.parametrize(("num_ranks", "message"), [(255, "256"), (400, "only 257 ranks")])
def test_impossible_training_is_refused(num_ranks: int, message: str):
    """Fewer ranks than bytes, or more than the text has pairs for, is an error."""
    with pytest.raises(ValueError, match=message):
        train(["ab ab"] if num_ranks < 256 else ["ab"], num_ranks)


def test_unknown_encoding_is_refused():
    """An encoding that does not exist is named together with those that do."""
    with pytest.raises(ValueError, match="'gpt3'; possible: gpt2, stdlib8k"):
        get_encoding("gpt3")


@pytest.mark.parametrize("error", [ConnectionError("no route"), ValueError("hash mismatch")])
def test_gpt2_never_falls_back(monkeypatch: pytest.MonkeyPatch, error: Exception):
    """Where tiktoken cannot load gpt2, asking for it is an error that names the alternative."""

    def refuse(name: str) -> tiktoken.Encoding:
        raise error

    monkeypatch.setattr(tokenizer.tiktoken, "get_encoding", refuse)
    with pytest.raises(RuntimeError, match="'gpt2' cannot be loaded.*ask for 'stdlib8k'"):
        get_encoding("gpt2")


def test_gpt2_is_read_from_the_rank_file_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With GPT-2's own splitting and no network; any other file, or none, is an error."""
    path = tmp_path / "ranks.tiktoken"
    write_ranks(path, train(TEXTS, 280), command="make ranks", source="three texts")
    monkeypatch.setenv("GPT2_RANKS", str(path))
    with pytest.raises(ValueError, match="with SHA-256 .*possible: r50k_base.tiktoken"):
        get_encoding("gpt2")
    monkeypatch.setattr(tokenizer, "GPT2_RANKS_SHA256", manifest.sha256_of(path))
    encoding = tokenizer._gpt2()
    assert (encoding.name, encoding.n_vocab) == ("gpt2", 281)
    assert encoding.decode(encoding.encode_ordinary(TEXTS[2])) == TEXTS[2]
    path.unlink()
    with pytest.raises(FileNotFoundError, match="ranks.tiktoken: no such file"):
        get_encoding("gpt2")


def test_a_rank_file_is_verified(tmp_path: Path):
    """A written rank file loads under its own name; one changed byte makes it an error."""
    path = tmp_path / "tiny.tiktoken"
    write_ranks(path, train(TEXTS, 280), command="make ranks", source="three texts")
    assert load_ranks(path).name == "tiny"
    assert load_ranks(path).n_vocab == 281
    path.write_bytes(path.read_bytes().replace(b"AA== 0", b"AA== 9", 1))
    with pytest.raises(ValueError, match="SHA-256 .* make ranks"):
        load_ranks(path)
    assert manifest.manifest_path(path).name == "tiny.tiktoken.json"


def test_corpus_order_is_fixed_by_names(tmp_path: Path):
    """The corpus order depends on the names alone, and leaves out tests and caches."""
    left_out = ("test/d.py", "sub/__pycache__/e.py", "_sysconfigdata_x.py", "config-3/f.py")
    for name in ("a.py", "b.py", "sub/c.py", *left_out):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    names = [name for name, _ in stdlib_texts(tmp_path)]
    assert sorted(names) == ["a.py", "b.py", "sub/c.py"]
    assert names == [name for name, _ in stdlib_texts(tmp_path)]
