"""Data, tokenizers and tiny models, made on the spot: no network, nothing of anybody's."""

import gzip
import json
import pickle
import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

WORDS = [a + b for a in "ba ke li mo nu sa ti vo zu pra".split() for b in "n r s t l m d".split()]


def text(words: int, seed: int = 0) -> str:
    """Return that many words, ten a line."""
    chosen = random.Random(seed).choices(WORDS, k=words)
    return "\n".join(" ".join(chosen[i : i + 10]) for i in range(0, words, 10)) + "\n"


def tokens(path: Path, count: int, vocabulary: int) -> None:
    """Write random tokens of 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.random.default_rng(0).integers(0, vocabulary, count, dtype=np.uint16).tofile(path)


def characters(tree: Path) -> None:
    """nanoGPT's shakespeare_char, of 65 letters."""
    folder = tree / "data/shakespeare_char"
    for split in ("train", "val"):
        tokens(folder / f"{split}.bin", 100_000, 65)
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def fineweb(tree: Path, count: int = 64_000_000, vocabulary: int = 50_257) -> None:
    """modded-nanogpt's shards, the first one long enough for all steps of a launch."""
    header = np.zeros(256, dtype=np.int32)
    for split, size in (("train", count), ("val", 100_000)):
        path = tree / f"data/fineweb10B/fineweb_{split}_000000.bin"
        tokens(path, size, vocabulary)
        header[:3] = 20240520, 1, size
        path.write_bytes(header.tobytes() + path.read_bytes())


def stories(tree: Path) -> None:
    """llama2.c's pretokenized shards, of a custom vocabulary of 512."""
    for shard in range(3):
        tokens(tree / f"data/tok512/data{shard:02d}.bin", 200_000, 512)


def wikitext(tree: Path) -> None:
    """The text that lightning's demos look for."""
    path = tree / "data/wikitext-2.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text(900_000))


def corpus(tree: Path) -> None:
    """word_language_model's three files."""
    for name in ("train", "valid", "test"):
        path = tree / f"word_language_model/data/made/{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(400_000 if name == "train" else 2_000))


def enwik8(tree: Path) -> None:
    """x-transformers' data: 95 MB of one letter less than random."""
    path = tree / "data/enwik8.gz"
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wb", 1) as file:
        line = text(1_000).encode()
        file.write(line * (int(95e6) // len(line) + 1))


def lightning_digits(tree: Path) -> None:
    """The same where lightning's examples look for them."""
    digits(tree, "examples/Datasets")
    digits(tree)


def digits(tree: Path, below: str = "data") -> None:
    """mnist's four idx files."""
    folder = tree / below / "MNIST/raw"
    folder.mkdir(parents=True)
    random_numbers = np.random.default_rng(0)
    for name, count in (("train", 60_000), ("t10k", 10_000)):
        images = random_numbers.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        header = struct.pack(">BBBBIII", 0, 0, 8, 3, count, 28, 28)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        labels = random_numbers.integers(0, 10, count, dtype=np.uint8)
        header = struct.pack(">BBBBI", 0, 0, 8, 1, count)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())


def byte_pairs(folder: Path, size: int = 512) -> None:
    """A byte-level tokenizer, as tokenizer.json and as GPT-2's two files."""
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir(parents=True, exist_ok=True)
    made = ByteLevelBPETokenizer()
    made.train_from_iterator([text(5_000)], vocab_size=size, special_tokens=["<|endoftext|>"])
    made.save_model(str(folder))
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "GPT2Tokenizer",
                "bos_token": "<|endoftext|>",
                "eos_token": "<|endoftext|>",
                "unk_token": "<|endoftext|>",
            }
        )
    )


def gpt2(tree: Path) -> None:
    """stanford_alpaca's model and instructions, all of one length."""
    from transformers import GPT2Config, GPT2LMHeadModel

    byte_pairs(tree / "data/tiny")
    config = GPT2Config(vocab_size=512, n_positions=256, n_embd=64, n_layer=2, n_head=4)
    GPT2LMHeadModel(config).save_pretrained(tree / "data/tiny")
    examples = [
        {"instruction": text(10, seed).strip(), "input": "", "output": text(10, -seed).strip()}
        for seed in range(1, 2001)
    ]
    (tree / "data/instructions.json").write_text(json.dumps(examples))


def texts(tree: Path) -> None:
    """litgpt's text files and tokenizer."""
    byte_pairs(tree / "data/tokenizer")
    for part in range(3):
        path = tree / f"data/texts/{part}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text(400_000, part))


def nanochat(tree: Path) -> None:
    """nanochat's parquet files, and its tokenizer by its own script."""
    import os

    import pyarrow
    from pyarrow import parquet

    base = Path(f"{tree}.base")
    (base / "base_data_climbmix").mkdir(parents=True, exist_ok=True)
    for shard in range(2):
        rows = [text(60, 1000 * shard + row) for row in range(4000)]
        path = base / f"base_data_climbmix/shard_{shard:05d}.parquet"
        parquet.write_table(pyarrow.table({"text": rows}), path, row_group_size=500)
    command = [sys.executable, "-m", "scripts.tok_train", "--vocab-size=512", "--max-chars=200000"]
    env = {**os.environ, "NANOCHAT_BASE_DIR": str(base)}
    subprocess.run(command, cwd=tree, env=env, check=True, stdout=subprocess.DEVNULL)


NOT_CALLED = {  # picotron imports these, and with its settings here calls none of them
    "flash_attn/flash_attn_interface.py": "flash_attn_func = None\n",
    "flash_attn/layers/rotary.py": "apply_rotary_emb = None\n",
    "flash_attn/ops/triton/layer_norm.py": "layer_norm_fn = None\n",
    "wandb.py": "",
}


def picotron(tree: Path, on_gpu: bool = False) -> None:
    """picotron's model, data and configuration; and empty modules for what it imports and then does
    not call. On a GPU more text, so that a launch reads none of it twice.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    model = tree / "hf_model/tiny"
    byte_pairs(model)
    layers, width, heads, length, rows = (
        (8, 1024, 16, 512, 30_000) if on_gpu else (2, 64, 4, 64, 2_000)
    )
    shape = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
    }
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=width,
        intermediate_size=2 * width,
        max_position_embeddings=length,
        **shape,
    )
    LlamaForCausalLM(config).save_pretrained(model)
    LlamaForCausalLM(config).save_pretrained(tree / "hf_model_safetensors")
    (tree / "data").mkdir()
    (tree / "data/train.jsonl").write_text(
        "".join(json.dumps({"text": text(200, row)}) + "\n" for row in range(rows))
    )
    settings = json.loads((tree / "template/base_config.json").read_text())
    settings["distributed"].update(dp_size=2, use_cpu=not on_gpu)
    settings["model"].update(name=str(model), use_flash_attention=False, **shape)
    settings["training"].update(seq_length=length, micro_batch_size=2, total_train_steps=10**9)
    settings["dataset"]["name"] = str(tree / "data")
    settings["checkpoint"]["save_frequency"] = 10**9
    settings["environment"].update(FLASH_ATTEN="0", HF_TOKEN="none")
    (tree / "data/config.json.txt").write_text(json.dumps(settings))
    for name, body in NOT_CALLED.items():
        path = Path(f"{tree}.flash") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body)


def picotron_on_gpus(tree: Path) -> None:
    """picotron for two GPUs."""
    picotron(tree, on_gpu=True)


def nothing(tree: Path) -> None:
    """The repository has its data."""


def minimind(tree: Path) -> None:
    """minimind's lines of text; its tokenizer is in the repository."""
    (tree / "dataset/lines.jsonl").write_text(
        "".join(json.dumps({"text": text(100, row)}) + "\n" for row in range(4000))
    )


def pictures(tree: Path) -> None:
    """A folder of small pictures for each of two classes and two splits."""
    from PIL import Image

    random_numbers = np.random.default_rng(0)
    for split, count in (("train", 4000), ("validation", 32)):
        for kind in ("a", "b"):
            folder = tree / f"data/{split}/{kind}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random_numbers.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
