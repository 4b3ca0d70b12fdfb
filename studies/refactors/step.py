"""The step of which the study counts: two micro-steps in bf16, clipping, AdamW, no compiler."""

import torch

from model import GPT, GPTConfig  # the one beside this file, in the study's scratch project


class TrainStep:
    """One step of a model of two layers."""

    tokens_per_step = 2 * 2 * 64

    def __init__(self, device: str) -> None:
        config = GPTConfig(block_size=64, vocab_size=512, n_layer=2, n_head=4, n_embd=64)
        self.model = GPT(config).to(device)
        self.optimizer = self.model.configure_optimizers(0.1, 0.0, (0.9, 0.95), device)
        self.inputs = torch.randint(512, (2, 2, 64), device=device)
        self.autocast = torch.autocast(device, torch.bfloat16)

    def step(self) -> None:
        """Run it."""
        for inputs in self.inputs:
            with self.autocast:
                _, loss = self.model(inputs, inputs)
            (loss / len(self.inputs)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def train_step(device: str) -> TrainStep:
    """Return a workload."""
    return TrainStep(device)
