"""A training step as people write it who learned from nanoGPT: one file, a ModuleDict, default
AdamW, a cosine schedule in Python, batches cut from an array. What test_refactors.py rewrites.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class Config:
    block_size: int = 16
    vocab_size: int = 64
    n_layer: int = 1
    n_head: int = 2
    n_embd: int = 32
    dropout: float = 0.0
    bias: bool = False


class Norm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.dropout = config.dropout

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(self.n_embd, dim=2)
        k = k.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        q = q.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        v = v.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True
        )
        y = y.transpose(1, 2).contiguous().view(b, t, c)
        return self.resid_dropout(self.proj(y))


class Feed(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x):
        x = self.up(x)
        x = self.act(x)
        x = self.down(x)
        return x


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = Norm(config.n_embd, config.bias)
        self.attn = Attention(config)
        self.ln_2 = Norm(config.n_embd, config.bias)
        self.mlp = Feed(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.parts = nn.ModuleDict(
            dict(
                wte=nn.Embedding(config.vocab_size, config.n_embd),
                wpe=nn.Embedding(config.block_size, config.n_embd),
                drop=nn.Dropout(config.dropout),
                h=nn.ModuleList([Layer(config) for _ in range(config.n_layer)]),
                ln_f=Norm(config.n_embd, config.bias),
            )
        )
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.parts.wte.weight = self.head.weight
        self.apply(self._init_weights)
        print("number of parameters: " + str(self.get_num_params()))

    def get_num_params(self):
        return sum(p.numel() for p in self.parameters())

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets=None):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        tok_emb = self.parts.wte(idx)
        pos_emb = self.parts.wpe(pos)
        x = self.parts.drop(tok_emb + pos_emb)
        for block in self.parts.h:
            x = block(x)
        x = self.parts.ln_f(x)
        if targets is not None:
            logits = self.head(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        else:
            logits = self.head(x[:, [-1], :])
            loss = None
        return logits, loss

    def optimizer(self, weight_decay, learning_rate):
        params = {name: p for name, p in self.named_parameters() if p.requires_grad}
        decay = [p for p in params.values() if p.dim() >= 2]
        nodecay = [p for p in params.values() if p.dim() < 2]
        groups = [
            {"params": decay, "weight_decay": weight_decay},
            {"params": nodecay, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


class Training:
    batch = 2
    accumulation = 2

    def __init__(self, device):
        self.device = device
        torch.manual_seed(1337)
        self.config = Config()
        self.data = np.arange(1000, dtype=np.uint16) % self.config.vocab_size
        self.model = Model(self.config).to(device)
        self.opt = self.model.optimizer(0.1, 0.0)
        self.scaler = torch.amp.GradScaler(device, enabled=False)
        self.tokens_per_step = self.accumulation * self.batch * self.config.block_size
        self.iteration = 0

    def get_batch(self):
        size = self.config.block_size
        ix = torch.randint(len(self.data) - size, (self.batch,))
        x = torch.stack([torch.from_numpy(self.data[i : i + size].astype(np.int64)) for i in ix])
        y = torch.stack(
            [torch.from_numpy(self.data[i + 1 : i + 1 + size].astype(np.int64)) for i in ix]
        )
        return x.to(self.device), y.to(self.device)

    def get_lr(self, it):
        if it < 10:
            return 0.0 * (it + 1) / 11
        ratio = min(1.0, (it - 10) / 100)
        return 0.0 * (0.5 * (1.0 + math.cos(math.pi * ratio)))

    def step(self):
        lr = self.get_lr(self.iteration)
        for group in self.opt.param_groups:
            group["lr"] = lr
        for _ in range(self.accumulation):
            x, y = self.get_batch()
            logits, loss = self.model(x, y)
            loss = loss / self.accumulation
            self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad(set_to_none=True)
        self.iteration += 1


def train_step(*, device):
    return Training(device)
