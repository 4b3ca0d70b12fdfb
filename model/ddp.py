"""How ranks exchange gradients: the settings of DistributedDataParallel, checked, and the wrapping.

    ddp = DdpSettings(bucket_cap_mb=100, gradient_as_bucket_view=True)
    network, replicas = ddp.wrap(model, settings)  # call network; replicas has no_sync()

The defaults are DistributedDataParallel's own. On one rank nothing is wrapped and nothing here has
an effect; values are checked all the same, so that a mistyped one is found before it costs a node.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from model.settings import Settings, check_choice, check_number


@dataclass(frozen=True)
class DdpSettings:
    """The parameters that only several ranks need.

    Attributes:
        bucket_cap_mb: gradients are exchanged in buckets of at most so many MiB, or one gradient
            where it alone is larger; None: 25, after a first one of 1.
        gradient_as_bucket_view: gradients live inside the buckets, which saves their copy.
        static_graph: promise that every step uses the same parameters in the same order.
        find_unused_parameters: look in every forward pass which parameters will get no gradient.
        compile_before_wrap: compile the model and wrap the result, else compile the wrapped model.
            Without ``compile`` it has no effect.
        optimize_ddp: let the compiler split its graph at bucket borders, so that communication
            starts before the backward pass has ended. Without ``compile`` it has no effect; it is
            a setting of the whole process (``torch._dynamo.config.optimize_ddp``).

    Raises:
        ValueError: a value is impossible.
    """

    bucket_cap_mb: float | None = None
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    find_unused_parameters: bool = False
    compile_before_wrap: bool = True
    optimize_ddp: bool = True

    def __post_init__(self) -> None:
        if self.bucket_cap_mb is not None:
            check_number("bucket_cap_mb", self.bucket_cap_mb)
        for one in fields(self)[1:]:
            check_choice(one.name, getattr(self, one.name), (True, False))

    def check(self, compile: bool) -> None:
        """Raise a one-line ValueError for what the compiler cannot do with these settings.

        Its splitter wants no bucket smaller than the first one, whose size is fixed at 1 MiB.
        """
        splits = compile and self.optimize_ddp
        if splits and self.bucket_cap_mb is not None and self.bucket_cap_mb < 1:
            name = "bucket_cap_mb with compile and optimize_ddp"
            raise ValueError(f"{name} is {self.bucket_cap_mb!r}; possible: a number of 1 or more")

    def wrap(
        self, model: nn.Module, settings: Settings
    ) -> tuple[nn.Module, DistributedDataParallel]:
        """What is to be called instead of the bare ``model``, and the wrapper inside it.

        The process group must be initialised; every rank has to call this with equal settings.
        """
        if settings.compile:
            torch._dynamo.config.optimize_ddp = self.optimize_ddp
        first = self.compile_before_wrap
        replicas = DistributedDataParallel(
            settings.compiled(model) if first else model,
            device_ids=[settings.torch_device.index] if settings.device == "cuda" else None,
            bucket_cap_mb=self.bucket_cap_mb,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            static_graph=self.static_graph,
            find_unused_parameters=self.find_unused_parameters,
        )
        return (replicas if first else settings.compiled(replicas)), replicas
