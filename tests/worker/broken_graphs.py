"""Programs whose graph breaks are known: every line that breaks a graph says so at its end."""

import sys

import torch
from torch import nn


def whole(x):
    return (x * 2).relu().sum()


def printing(x):
    x = x + 1
    print("seen")  # BREAK
    return x * 2


def branch_on_item(x):
    if x.sum().item() > 0:  # BREAK
        return x + 1
    return x - 1


def branch_on_tensor(x):
    if x.sum() > 0:  # BREAK
        return x + 1
    return x - 1


def asked_for(x):
    x = x + 1
    torch._dynamo.graph_break()  # BREAK
    return x * 3


def unsupported_builtin(x):
    size = sys.getsizeof(x)  # BREAK
    return x + size


def three(x):
    print("one")  # BREAK
    x = x + 1
    torch._dynamo.graph_break()  # BREAK
    x = x * 2
    print("three")  # BREAK
    return x


def in_a_loop(x):
    for _ in range(3):
        x = x + 1
        print("again")  # BREAK
    return x


def branch_in_a_loop(x):
    for _ in range(3):
        if x.sum() > 0:  # BREAK
            x = x + 1
    return x


def in_a_try(x):
    try:
        x = x + 1
        print("tried")  # BREAK
    finally:
        x = x * 2
    return x


def nested(x):
    def inner(y):
        y = y + 1
        print("inner")  # BREAK
        return y

    return inner(x) * 2


def deep(x):
    return called(x * 2) + called(x)


def called(x):
    x = x + 1
    torch._dynamo.graph_break()  # BREAK
    return x


class Layer(nn.Module):
    def forward(self, x):
        return x * x.sum().item()  # BREAK


LAYERS = nn.Sequential(Layer(), Layer())


def called_modules(x):
    return LAYERS(x) + 1


@torch.compiler.disable
def kept_out(x):
    return x + 1


def calls_what_is_kept_out(x):
    return kept_out(x * 2) * 2  # BREAK
