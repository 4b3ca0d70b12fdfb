"""The public repositories of this study: commit, command, data, planted changes."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import made
from edits import Change, Edit, change


@dataclass(frozen=True)
class Repository:
    """One training script of a public repository.

    ``command``: what stands behind ``init -- ``. ``options``: what stands before it. In both and in
    ``env``, ``{tree}`` is the clone.
    """

    repository: str
    commit: str
    command: tuple[str, ...]
    prepare: Callable[[Path], None]
    plants: tuple[Change, ...]
    refactors: tuple[Change, ...]
    folder: str = "."
    options: tuple[str, ...] = ("--device", "cpu")
    env: dict[str, str] = field(default_factory=dict)
    in_the_way: tuple[str, ...] = ()
    written: tuple[str, ...] = ()  # what the script writes into the tree; git is told to ignore it
    python: str = sys.executable


COMMENT = "# Lines above all others,\n# so that every place moves.\n# Nothing else."
LONG = "1000000000"
CLASSIFIER = "examples/pytorch/basics/backbone_image_classifier.py"
TORCHVISION = os.environ.get("PYTHON_WITH_TORCHVISION", sys.executable)

REPOSITORIES = {
    "nanogpt": Repository(
        "karpathy/nanoGPT",
        "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        (
            "train.py",
            "config/train_shakespeare_char.py",
            "--device=cpu",
            "--compile=False",
            "--n_layer=2",
            "--n_head=4",
            "--n_embd=64",
            "--block_size=64",
            "--batch_size=4",
            "--eval_iters=1",
            f"--max_iters={LONG}",
            f"--log_interval={LONG}",
            f"--eval_interval={LONG}",
        ),
        made.characters,
        (
            change(
                ".item() of the loss in the loop", Edit("train.py", 305, after="seen = loss.item()")
            ),
            change(
                "copy of the logits in fp64",
                Edit("model.py", 186, after="self.kept = logits.detach().double()"),
            ),
            change(
                "host loop over the batch",
                Edit("train.py", 130, after="x = torch.stack([row.clone() for row in x])"),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("model.py", rename=("pos_emb", "positions"), top=COMMENT),
            ),
            change(
                "a sum in two statements",
                Edit("model.py", 105, instead="h = self.mlp(self.ln_2(x))\nx = x + h"),
            ),
        ),
    ),
    "llama2c": Repository(
        "karpathy/llama2.c",
        "350e04fe35433e6d2941dce5a1f53308f87058eb",
        (
            "train.py",
            "--device=cpu",
            "--compile=False",
            "--dtype=float32",
            "--vocab_source=custom",
            "--vocab_size=512",
            "--dim=64",
            "--n_layers=2",
            "--n_heads=4",
            "--n_kv_heads=2",
            "--max_seq_len=64",
            "--batch_size=4",
            "--gradient_accumulation_steps=2",
            "--eval_iters=1",
            f"--max_iters={LONG}",
            f"--log_interval={LONG}",
            f"--eval_interval={LONG}",
        ),
        made.stories,
        (
            change(
                "float() of the loss in each micro-step",
                Edit("train.py", 311, after="seen = float(loss)"),
            ),
            change(
                "norm in fp64",
                Edit("model.py", 37, instead="output = self._norm(x.double()).type_as(x)"),
            ),
            change(
                "copy of each batch in the loader",
                Edit("tinystories.py", 248, after="x = x.clone()"),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("model.py", rename=("seqlen", "length"), top=COMMENT),
            ),
            change(
                "a norm in two statements",
                Edit(
                    "model.py",
                    37,
                    instead="normed = self._norm(x.float())\noutput = normed.type_as(x)",
                ),
            ),
        ),
    ),
    "mingpt": Repository(
        "karpathy/minGPT",
        "37baab71b9abea1b76ab957409a1cc2fbfba8a26",
        ("-m", "projects.adder.adder", "--trainer.num_workers=0", "--data.ndigit=3"),
        made.nothing,
        (
            change(
                ".item() of the loss in the trainer",
                Edit("mingpt/trainer.py", 97, after="self.last = self.loss.item()"),
            ),
            change(
                "a copy in each GELU",
                Edit("mingpt/model.py", 26, after="x = x.clone()", deeper=True),
            ),
            change(
                "norms of the gradients, one by one",
                Edit(
                    "mingpt/trainer.py",
                    98,
                    after="norms = [p.grad.norm() for p in model.parameters()]",
                ),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("mingpt/model.py", rename=("pos_emb", "positions"), top=COMMENT),
            ),
            change(
                "a sum in two statements",
                Edit("mingpt/model.py", 92, instead="h = self.mlpf(self.ln_2(x))\nx = x + h"),
            ),
        ),
        options=("--device", "cpu", "--every", "10"),
        in_the_way=("refused: it evaluates each 500 steps, whatever its arguments",),
    ),
    "nanochat": Repository(
        "karpathy/nanochat",
        "92d63d4e8bb4df75c3b71618f31ddde2378b2bcd",
        (
            "-m",
            "scripts.base_train",
            "--depth=2",
            "--aspect-ratio=32",
            "--head-dim=32",
            "--max-seq-len=64",
            "--window-pattern=L",
            "--device-batch-size=2",
            "--total-batch-size=128",
            f"--num-iterations={LONG}",
            "--eval-every=-1",
            "--core-metric-every=-1",
            "--sample-every=-1",
        ),
        made.nanochat,
        (
            change(
                ".item() of the loss in each micro-step",
                Edit("scripts/base_train.py", 517, after="seen = train_loss.item()"),
            ),
            change(
                ".item() inside of a compiled block",
                Edit("nanochat/gpt.py", 139, after="self.peak = x.max().item()"),
            ),
            change(
                "copy of the rows in the loader",
                Edit("nanochat/dataloader.py", 153, after="row_buffer = row_buffer.clone()"),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("nanochat/gpt.py", rename=("backout_layer", "middle"), top=COMMENT),
            ),
            change(
                "a sum in two statements",
                Edit("nanochat/gpt.py", 152, instead="h = self.mlp(norm(x))\nx = x + h"),
            ),
        ),
        env={"NANOCHAT_BASE_DIR": "{tree}.base"},
    ),
    "litgpt": Repository(
        "Lightning-AI/litgpt",
        "26857050fe3ff627cd714fe92f5838f51a3d5efa",
        (
            "-m",
            "litgpt",
            "pretrain",
            "pythia-14m",
            "--precision=32-true",
            "--devices=1",
            "--data=TextFiles",
            "--data.train_data_path=data/texts",
            "--data.num_workers=0",
            "--tokenizer_dir=data/tokenizer",
            "--train.max_seq_length=64",
            "--train.micro_batch_size=1",
            "--train.global_batch_size=1",
            f"--train.log_interval={LONG}",
            f"--train.save_interval={LONG}",
            f"--eval.interval={LONG}",
            "--logger_name=csv",
        ),
        made.texts,
        (
            change(
                ".item() of the loss in the loop",
                Edit("litgpt/pretrain.py", 357, after="seen = loss.item()"),
            ),
            change(
                "copy of the logits in fp64",
                Edit("litgpt/utils.py", 334, after="logits = logits.double()"),
            ),
            change(
                "host loop over the targets",
                Edit(
                    "litgpt/pretrain.py",
                    349,
                    after="targets = torch.stack([row for row in targets])",
                ),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("litgpt/model.py", rename=("x_normed", "normed"), top=COMMENT),
            ),
            change(
                "an activation in two statements",
                Edit(
                    "litgpt/model.py",
                    814,
                    instead="h = F.gelu(x, approximate=self.config.gelu_approximate)\nx = h",
                ),
            ),
        ),
    ),
    "picotron": Repository(
        "huggingface/picotron",
        "59714b1bf25541dbeb6f5a721ed15f6d0768e786",
        ("train.py", "--config", "data/config.json.txt"),
        made.picotron,
        (
            change(
                "an added collective", Edit("train.py", 51, after="dist.all_reduce(loss.detach())")
            ),
            change(
                "norm in fp64",
                Edit("picotron/model.py", 83, after="hidden_states = hidden_states.double()"),
            ),
            change(
                "copy of each batch in the loader",
                Edit("picotron/data.py", 107, after="input_ids = input_ids.clone()"),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("picotron/model.py", rename=("variance", "mean_square"), top=COMMENT),
            ),
            change(
                "a sum in two statements",
                Edit(
                    "picotron/model.py",
                    234,
                    instead="h = self.mlp(self.post_attention_layernorm(x))\nx = x + h",
                ),
            ),
        ),
        options=("--device", "cpu", "--gpus", "2"),
        env={"PYTHONPATH": "{tree}.flash", "DTYPE": "float32"},
        in_the_way=(
            "imports flash_attn on a CPU, too: three empty functions on PYTHONPATH",
            "refused: picotron/utils.py:75 makes a tensor on cuda, whatever use_cpu says",
        ),
    ),
    "mnist": Repository(
        "pytorch/examples",
        "77f55b912142e11fcfdf5b530231fb9c52f181e8",
        ("main.py", f"--log-interval={LONG}", "--epochs=100000", "--batch-size=16", "--no-accel"),
        made.digits,
        (
            change(
                ".item() of the loss in the loop", Edit("main.py", 43, after="seen = loss.item()")
            ),
            change("a copy between two layers", Edit("main.py", 26, after="x = x.clone()")),
            change(
                "host loop over the batch",
                Edit("main.py", 39, after="data = torch.stack([image for image in data])"),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("main.py", rename=("batch_idx", "number"), top=COMMENT),
            ),
            change(
                "an activation in two statements",
                Edit("main.py", 29, instead="h = F.relu(x)\nx = h"),
            ),
        ),
        folder="mnist",
        python=TORCHVISION,
    ),
    "word_language_model": Repository(
        "pytorch/examples",
        "77f55b912142e11fcfdf5b530231fb9c52f181e8",
        (
            "main.py",
            "--data=data/made",
            "--model=Transformer",
            "--emsize=64",
            "--nhid=64",
            "--nhead=2",
            "--dropout=0",
            "--batch_size=4",
            f"--log-interval={LONG}",
        ),
        made.corpus,
        (
            change(
                ".item() of the logits in the loop",
                Edit("main.py", 186, after="peak = output.max().item()"),
            ),
            change("logits in fp64", Edit("model.py", 143, after="output = output.double()")),
            change("a mask made anew in each step", Edit("model.py", 134, instead="if True:")),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("main.py", rename=("cur_loss", "mean_loss"), top=COMMENT),
            ),
            change(
                "a product in two statements",
                Edit(
                    "model.py",
                    140,
                    instead="src = self.input_emb(src)\nsrc = src * math.sqrt(self.ninp)",
                ),
            ),
        ),
        folder="word_language_model",
        options=("--device", "cpu", "--step-at", "torch.nn.utils:clip_grad_norm_"),
        in_the_way=("updates its parameters without an optimizer: --step-at",),
    ),
    "lightning_trainer": Repository(
        "Lightning-AI/pytorch-lightning",
        "7f0c3436cd3f6ad3753125672024fc415cbcb414",
        ("examples/pytorch/basics/transformer.py",),
        made.wikitext,
        (
            change(
                ".item() of the loss in the training step",
                Edit("examples/pytorch/basics/transformer.py", 17, after="self.last = loss.item()"),
            ),
            change(
                "logits in fp64",
                Edit(
                    "examples/pytorch/basics/transformer.py", 16, after="output = output.double()"
                ),
            ),
            change(
                "host loop over the batch",
                Edit(
                    "examples/pytorch/basics/transformer.py",
                    15,
                    after="input = torch.stack([row for row in input])",
                ),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit(
                    "examples/pytorch/basics/transformer.py",
                    rename=("output", "scores"),
                    top=COMMENT,
                ),
            ),
            change(
                "a loss in two statements",
                Edit(
                    "examples/pytorch/basics/transformer.py",
                    17,
                    instead="flat = target.view(-1)\nloss = F.nll_loss(output, flat)",
                ),
            ),
        ),
        env={"PYTHONPATH": "src"},
        in_the_way=(
            "the repository has the library in src/: PYTHONPATH=src, as the refusal says",
            "refused: Lightning logs each 50 steps, and the script takes no arguments",
        ),
    ),
    "lightning_cli": Repository(
        "Lightning-AI/pytorch-lightning",
        "7f0c3436cd3f6ad3753125672024fc415cbcb414",
        (
            "examples/pytorch/basics/backbone_image_classifier.py",
            "--trainer.accelerator=cpu",
            "--trainer.max_epochs=100000",
            f"--trainer.log_every_n_steps={LONG}",
            "--trainer.logger=false",
            "--trainer.enable_checkpointing=false",
        ),
        made.lightning_digits,
        (
            change(
                ".item() of the loss in the training step",
                Edit(CLASSIFIER, 80, after="self.last = loss.item()"),
            ),
            change("logits in fp64", Edit(CLASSIFIER, 79, after="y_hat = y_hat.double()")),
            change(
                "host loop over the batch",
                Edit(CLASSIFIER, 78, after="x = torch.stack([image for image in x])"),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit(CLASSIFIER, rename=("y_hat", "scores"), top=COMMENT),
            ),
            change(
                "a layer in two statements",
                Edit(CLASSIFIER, 54, instead="h = self.l1(x)\nx = torch.relu(h)"),
            ),
        ),
        env={"PYTHONPATH": "src"},
        in_the_way=(
            "the repository has the library in src/: PYTHONPATH=src, as the refusal says",
            "the script writes config.yaml into the tree: git was told to ignore it",
        ),
        written=("config.yaml",),
        python=TORCHVISION,
    ),
    "alpaca": Repository(
        "tatsu-lab/stanford_alpaca",
        "761dc5bfbdeeffa89b8bff5d038781a4055f796a",
        (
            "train.py",
            "--model_name_or_path=data/tiny",
            "--data_path=data/instructions.json",
            "--output_dir=out",
            "--use_cpu=True",
            "--num_train_epochs=100000",
            "--per_device_train_batch_size=4",
            "--logging_strategy=no",
            "--save_strategy=no",
            "--report_to=none",
            "--model_max_length=128",
        ),
        made.gpt2,
        (
            change(
                ".item() in the collator",
                Edit("train.py", 167, after="longest = int(labels.max())"),
            ),
            change(
                "logits in fp64, by a hook",
                Edit(
                    "train.py",
                    214,
                    after='model.register_forward_hook(lambda m, i, o: setattr(m, "kept", o.logits.detach().double()))',
                ),
            ),
            change(
                "copy of each batch in the collator",
                Edit("train.py", 167, after="input_ids = input_ids.clone()"),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("train.py", rename=("instances", "examples"), top=COMMENT),
            ),
            change(
                "a mask in two statements",
                Edit("train.py", 171, instead="attention_mask=input_ids.ne(pad),"),
                Edit("train.py", 167, after="pad = self.tokenizer.pad_token_id"),
            ),
        ),
    ),
    "x_transformers": Repository(
        "lucidrains/x-transformers",
        "9252ed7838021ee61e6c5be0930b3a9a88efdf06",
        (
            "train_enwik8.py",
            "--cpu=True",
            "--seq_len=16",
            "--batch_size=1",
            "--gradient_accumulate_every=2",
            f"--num_batches={LONG}",
            f"--validate_every={LONG}",
            f"--generate_every={LONG}",
        ),
        made.enwik8,
        (
            change(
                "float() of the loss in each micro-step",
                Edit("train_enwik8.py", 126, after="seen = float(loss)"),
            ),
            change(
                "copy of each sequence in the data set",
                Edit("train_enwik8.py", 95, after="full_seq = full_seq.clone()"),
            ),
            change(
                "the gradients' norm, once more",
                Edit(
                    "train_enwik8.py",
                    132,
                    after="norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()",
                ),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("train_enwik8.py", rename=("rand_start", "begin"), top=COMMENT),
            ),
            change(
                "a slice in two statements",
                Edit(
                    "train_enwik8.py",
                    95,
                    instead="piece = self.data[rand_start: rand_start + self.seq_len + 1]\nfull_seq = piece.long()",
                ),
            ),
        ),
    ),
    "path_star_2": Repository(
        "lucidrains/x-transformers",
        "9252ed7838021ee61e6c5be0930b3a9a88efdf06",
        (
            "train_path_star.py",
            "--use_nextlat=False",
            "--dim=64",
            "--depth=2",
            "--heads=2",
            "--batch_size=4",
            "--num_val=8",
            "--epochs=100000",
        ),
        made.nothing,
        (
            change(
                "an added collective",
                Edit(
                    "train_path_star.py",
                    220,
                    after="torch.distributed.all_reduce(loss.detach().clone())",
                ),
            ),
            change(
                ".item() of the loss in the loop",
                Edit("train_path_star.py", 228, after="seen = loss.item()"),
            ),
            change(
                "copy of each sample in the data set",
                Edit("train_path_star.py", 109, instead="return self.data[idx].clone()"),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("train_path_star.py", rename=("total_loss", "summed"), top=COMMENT),
            ),
            change(
                "a sum in two statements",
                Edit("train_path_star.py", 228, instead="value = loss.item()\ntotal_loss += value"),
            ),
        ),
        options=("--device", "cpu", "--gpus", "2"),
        env={"WANDB_MODE": "disabled", "ACCELERATE_USE_CPU": "true"},
        in_the_way=("wandb wants to reach its server: WANDB_MODE=disabled",),
    ),
    "minimind": Repository(
        "jingyaogong/minimind",
        "d65ef2c00ebc6082f9df11541e1b191655eddb00",
        (
            "train_pretrain.py",
            "--device=cpu",
            "--data_path=../dataset/lines.jsonl",
            "--num_workers=0",
            "--accumulation_steps=1",
            "--batch_size=2",
            "--hidden_size=64",
            "--num_hidden_layers=2",
            "--max_seq_len=64",
            "--epochs=100000",
            f"--log_interval={LONG}",
            f"--save_interval={LONG}",
        ),
        made.minimind,
        (
            change(
                ".item() of the loss in the loop",
                Edit("train_pretrain.py", 40, after="seen = loss.item()"),
            ),
            change(
                "norm in fp64",
                Edit(
                    "../model/model_minimind.py",
                    60,
                    instead="return (self.weight * self.norm(x.double())).type_as(x)",
                ),
            ),
            change(
                "copy of each sample in the data set",
                Edit("../dataset/lm_dataset.py", 53, after="labels = labels.clone()"),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("../model/model_minimind.py", rename=("presents", "kept"), top=COMMENT),
            ),
            change(
                "a sum in two statements",
                Edit(
                    "../model/model_minimind.py",
                    193,
                    instead="h = self.mlp(self.post_attention_layernorm(hidden_states))\nhidden_states = hidden_states + h",
                ),
            ),
        ),
        folder="trainer",
    ),
    "timm": Repository(
        "huggingface/pytorch-image-models",
        "aa4b5850c1543fa488abf260f18390eda46cf85d",
        (
            "train.py",
            "--data-dir=data",
            "--model=test_vit",
            "--img-size=64",
            "--num-classes=2",
            "--device=cpu",
            "--batch-size=4",
            "--workers=1",
            "--no-prefetcher",
            "--no-aug",
            "--epochs=100000",
            f"--log-interval={LONG}",
            f"--val-interval={LONG}",
        ),
        made.pictures,
        (
            change(
                ".item() of the loss in the loop",
                Edit("train.py", 1384, after="seen = loss.item()"),
            ),
            change("a copy in each MLP", Edit("timm/layers/mlp.py", 48, after="x = x.clone()")),
            change(
                "host loop over the batch",
                Edit("train.py", 1284, after="input = torch.stack([image for image in input])"),
            ),
        ),
        (
            change(
                "renamed, and all lines moved",
                Edit("train.py", rename=("lrl", "rates"), top=COMMENT),
            ),
            change(
                "an activation in two statements",
                Edit("timm/layers/mlp.py", 49, instead="h = self.act(x)\nx = h"),
            ),
        ),
        python=TORCHVISION,
    ),
}

# On a GPU: run.sh's arguments, but for half the batch, no validation and a learning rate of 0.
REPOSITORIES["modded_nanogpt"] = Repository(
    "KellerJordan/modded-nanogpt",
    "94c05010a12b4db2a7f461455fd153123733b63c",
    (
        "train_gpt2.py",
        "--input_bin=data/fineweb10B/fineweb_train_*.bin",
        "--input_val_bin=data/fineweb10B/fineweb_val_*.bin",
        "--model=d12",
        "--batch_size=32",
        "--sequence_length=1024",
        "--val_loss_every=0",
        f"--num_iterations={LONG}",
        "--learning_rate=0",
    ),
    made.fineweb,
    (
        change(
            ".item() of the loss in each micro-step",
            Edit("train_gpt2.py", 475, after="seen = loss.item()"),
        ),
        change(
            "copy of each update in the optimizer",
            Edit("train_gpt2.py", 46, after="update = update.clone()"),
        ),
        change("compiled norms in fp64", Edit("train_gpt2.py", 130, instead="x = x0.double()")),
    ),
    (
        change(
            "renamed, and all lines moved",
            Edit("train_gpt2.py", rename=("qkv", "joined"), top=COMMENT),
        ),
        change(
            "a sum in two statements",
            Edit("train_gpt2.py", 188, instead="h = self.mlp(rmsnorm(x))\nx = x + h"),
        ),
    ),
    options=("--torchrun", "--data", "data/fineweb10B"),
    in_the_way=("only torchrun starts it, also on one GPU: --torchrun",),
)

REPOSITORIES["picotron_2_gpus"] = replace(
    REPOSITORIES["picotron"],
    prepare=made.picotron_on_gpus,
    options=("--gpus", "2"),
    env={"PYTHONPATH": "{tree}.flash"},
    in_the_way=("imports flash_attn, which it does not call then: empty functions on PYTHONPATH",),
)
# The same scripts on two ranks.
REPOSITORIES["alpaca_2"] = replace(
    REPOSITORIES["alpaca"], options=("--device", "cpu", "--gpus", "2")
)
REPOSITORIES["lightning_cli_2"] = replace(
    REPOSITORIES["lightning_cli"],
    command=(
        *REPOSITORIES["lightning_cli"].command,
        "--trainer.devices=2",
        "--trainer.strategy=ddp",
    ),
    options=("--device", "cpu", "--gpus", "2"),
)
