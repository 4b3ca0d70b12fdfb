"""Train a tiny OLMo on random tokens, step by step as Trainer.train_step does."""

import torch
from olmo import OLMo
from olmo.config import ModelConfig, OptimizerConfig, OptimizerType, TrainConfig
from olmo.optim import build_optimizer

LOG_INTERVAL = 1_000_000  # steps between two that collect the metrics of parameters

torch.manual_seed(0)
cfg = TrainConfig(
    model=ModelConfig(
        d_model=64,
        n_heads=4,
        n_layers=2,
        vocab_size=256,
        embedding_size=256,
        max_sequence_length=64,
        init_device="cpu",
    ),
    optimizer=OptimizerConfig(name=OptimizerType.adamw, learning_rate=1e-3),
    max_grad_norm=1.0,
)
model = OLMo(cfg.model)
optim = build_optimizer(cfg, model)
tokens = torch.randint(0, 256, (64, 4, 65))
for step in range(1, 1_000_000):
    batch = tokens[step % len(tokens)]
    optim.zero_grad(set_to_none=True)
    logits = model(batch[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optim_metrics = optim.clip_grads_and_collect_metrics(
        step, collect_param_metrics=step % LOG_INTERVAL == 0
    )
    optim.step()
    if torch.isnan(loss):
        raise ValueError("nan loss encountered")
    metrics = {f"optim/{key}": value.item() for key, value in optim_metrics.items()}
    metrics["train/CrossEntropyLoss"] = loss.item()
