"""What lives on the host by design is no candidate for a sync, and the same thing on the device is:
torch's own optimizers, schedulers, scaler, clipping and loader, and tensors of known places.
"""

import copy
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from stepguard.worker.counters.sync_candidates import count_candidates
from stepguard.worker.counters.tally import RankStep, Tally
from stepguard.worker.counters.tensor_devices import Placement

DEVICE = "cpu"


def candidates(make):
    """What waits in a step of the factory: {what: count}, after a first step that nobody saw."""
    placement, tally = Placement(), Tally()
    with placement.observed():
        step = make(DEVICE)
    step()
    count_candidates(tally, RankStep(step, torch.device(DEVICE), placement=placement))
    assert not tally.unstable
    sites = tally.sites.get("sync_candidates_per_step", ())
    found = Counter()
    for site in sites:
        found[site.what] += site.count
    assert sum(found.values()) == tally.values["sync_candidates_per_step"]
    return found


def test_a_reducers_bucket_lives_on_the_device(tmp_path):
    """The reducer copies gradients into it, and a hook exchanges it: nothing goes to the host."""

    def make(device):
        replicas = DistributedDataParallel(torch.nn.Linear(4, 4, device=device))
        replicas.register_comm_hook(None, allreduce_hook)
        return lambda: replicas(torch.ones(2, 4, device=device)).sum().backward()

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert not candidates(make)
    finally:
        dist.destroy_process_group()


def training(optimizer, then=lambda made: None, sent=True):
    """A factory of a training step; ``then`` is called at the end of each step."""

    def make(device):
        model = torch.nn.Linear(4, 4, device=device)
        made = SimpleNamespace(model=model, optimizer=optimizer(model.parameters()))
        inputs = torch.ones(2, 4, device=device)

        def step():
            made.loss = model(inputs).square().mean()
            made.loss.backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
            then(made)

        return step

    return make


@pytest.mark.parametrize("kind", [SGD, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop])
@pytest.mark.parametrize("foreach", [None, True, False])
def test_an_optimizers_own_counters_are_the_hosts(kind, foreach):
    """Default, one by one, and foreach: no step counter makes a host wait."""
    assert candidates(training(lambda p: kind(p, lr=0.01, foreach=foreach))) == {}


@pytest.mark.parametrize("fused", [True, False])
def test_a_fused_optimizers_counter_is_the_devices(fused):
    """The same line waits where the kernel keeps the counter, and not where the host does."""

    def read(made):
        made.optimizer.state[made.model.weight]["step"].item()

    found = candidates(training(lambda p: AdamW(p, fused=fused), read))
    assert found == ({".item()": 1} if fused else {})


def test_a_capturable_optimizer_is_refused_by_torch_itself():
    """torch runs none on a CPU, so that there is nothing to place."""
    with pytest.raises(AssertionError, match="capturable"):
        candidates(training(lambda p: Adam(p, capturable=True, foreach=False)))


def test_a_learning_rate_in_a_tensor():
    """Made without a device it is the host's; made on the device, reading it waits."""
    host = training(lambda p: SGD(p, lr=torch.tensor(0.01), foreach=False))
    assert candidates(host) == {}

    def own(parameters):
        rate = torch.tensor(0.01, device=DEVICE)
        return SimpleNamespace(step=rate.item, zero_grad=lambda: None)

    assert candidates(training(own)) == {".item()": 1}


@pytest.mark.parametrize("scheduler", [
    lambda optimizer: schedulers.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    lambda optimizer: schedulers.CosineAnnealingLR(optimizer, 10),
    lambda optimizer: schedulers.OneCycleLR(optimizer, 0.1, total_steps=100),
    lambda optimizer: schedulers.StepLR(optimizer, 3),
])  # fmt: skip
@pytest.mark.parametrize("rate", [0.01, torch.tensor(0.01)])
def test_a_scheduler_is_the_hosts(scheduler, rate):
    """With a rate in Python or in a tensor: nothing waits."""
    made = []

    def optimizer(parameters):
        found = SGD(parameters, lr=rate, foreach=False)
        made.append(scheduler(found))
        return found

    steps = training(optimizer, lambda _: made[0].step())
    assert candidates(steps) == {}


def test_a_scheduler_that_reads_the_loss_waits():
    """ReduceLROnPlateau makes a float of it."""
    made = []

    def then(step):
        made or made.append(schedulers.ReduceLROnPlateau(step.optimizer))
        made[0].step(step.loss.detach())

    assert candidates(training(lambda p: SGD(p, lr=0.01), then)) == {".item()": 1}


@pytest.mark.parametrize(("kind", "waits"), [(SGD, 1), (AdamW, 0)])
def test_the_scaler_waits_for_its_flag_unless_the_kernel_takes_it(kind, waits):
    """GradScaler reads on the host whether a gradient overflowed; a fused AdamW takes the flag."""

    def make(device):
        model = torch.nn.Linear(4, 4, device=device)
        options = {"fused": True} if kind is AdamW else {}
        optimizer = kind(model.parameters(), lr=0.01, **options)
        scaler = torch.amp.GradScaler(device)
        inputs = torch.ones(2, 4, device=device)

        def step():
            scaler.scale(model(inputs).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        return step

    assert sum(candidates(make).values()) == waits


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_clipping_waits_only_where_it_looks(foreach, strict):
    """The norm stays on the device, unless it is to raise at one that is not finite."""

    def step(made):
        made.model(torch.ones(1, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(
            made.model.parameters(), 1.0, foreach=foreach, error_if_nonfinite=strict
        )
        torch.nn.utils.clip_grad_value_(made.model.parameters(), 1.0)

    found = candidates(training(lambda p: SGD(p, lr=0.01), step))
    assert sum(found.values()) == int(strict)


@pytest.mark.parametrize(
    ("read", "waits"), [("lengths", 0), ("lengths.max()", 0), ("sent", 1), ("sent.max()", 1)]
)
def test_a_batch_is_the_hosts_until_it_is_sent(read, waits):
    """A loader shuffles and collates on the host; of what was sent, the copy is the device's, and
    the loader's own tensor is not.
    """

    def make(device):
        model = torch.nn.Linear(1, 1).to(device)
        data = TensorDataset(torch.rand(6, 1), torch.arange(6))
        loader = DataLoader(data, batch_size=2, shuffle=True)

        def step():
            inputs, lengths = next(iter(loader))
            sent = lengths.to(device, non_blocking=True)
            model(inputs.to(device)).sum().backward()
            bool(eval(read, {"lengths": lengths, "sent": sent}).sum())

        return step

    assert sum(candidates(make).values()) == waits


@pytest.mark.parametrize(("start", "add", "read", "found"), [
    ("torch.zeros(())", "total + 1", "total.item()", {}),
    ("torch.zeros((), device='cpu')", "total + 1", "total.item()", {}),
    ("torch.zeros((), device=device)", "total.add_(1)", "total.item()", {".item()": 1}),
    ("torch.zeros(()).to(device)", "total.add_(1)", "total.item()", {".item()": 1}),
    ("torch.zeros((), device=device)", "total + loss", "total.item()", {".item()": 1}),
    ("torch.zeros(())", "total + loss.cpu()", "total.item()", {"copy to the host": 1}),
    ("torch.zeros(())", "loss", "total", {}),
    ("torch.nn.BatchNorm1d(1).to(device)", "total", "total.num_batches_tracked.item()", 1),
])  # fmt: skip
def test_a_metric_is_where_it_was_made_or_sent(start, add, read, found):
    """A total on the host is read freely, one on the device is not; what is added to it counts."""

    def make(device):
        weight = torch.nn.Parameter(torch.ones(3, device=device))
        known = {"torch": torch, "device": device}
        known["total"] = eval(start, known)

        def step():
            known["loss"] = weight.detach().square().mean()
            known["total"] = eval(add, known)
            eval(read, known)

        return step

    if found == 1:
        found = {".item()": 1}
    assert candidates(make) == found


@pytest.mark.parametrize(("read", "found"), [
    (lambda loss, host: torch.tensor([loss, loss]), {".item()": 2}),
    (lambda loss, host: torch.as_tensor((loss, 1.0)), {".item()": 1}),
    (lambda loss, host: host.new_tensor([loss]), {".item()": 1}),
    (lambda loss, host: torch.tensor([host, 1.0]), {}),
    (lambda loss, host: torch.as_tensor(loss), {}),
])  # fmt: skip
def test_a_list_of_numbers_is_read_one_by_one(read, found):
    """torch.tensor(losses) reads each of them, without an operator that shows it."""

    def make(device):
        weight = torch.nn.Parameter(torch.ones(3, device=device))
        host = torch.tensor(2.0)
        return lambda: read(weight.detach().square().mean(), host)

    assert candidates(make) == found


@pytest.mark.parametrize(("read", "found"), [
    (lambda device: torch.zeros(1, device="cpu" if device is None else device), 1),
    (lambda device: torch.zeros(1).to("cpu" if device is None else device), 1),
    (lambda device: torch.zeros(1).to(torch.device("cpu" if device is None else device)), 1),
    (lambda device: torch.zeros(1, device="cpu"), 0),
])  # fmt: skip
def test_the_host_if_there_is_no_gpu_is_the_device_otherwise(read, found):
    """`"cpu" if ... else device`, as scripts say it."""

    def make(device):
        return lambda: read(device).item()

    assert sum(candidates(make).values()) == found


def test_what_the_last_step_left_is_known():
    """A loss that is read one step later is the device's from the first counted step on."""

    def make(device):
        weight, kept = torch.nn.Parameter(torch.ones(3)), []

        def step():
            kept.append(weight.sum().detach())
            if len(kept) > 1:
                kept.pop(0).item()

        return step

    assert candidates(make) == {".item()": 1}


@pytest.mark.parametrize("average", [copy.deepcopy, AveragedModel])
def test_a_copy_of_a_model_is_where_the_model_is(average):
    """An average's buffers are copied from the model's: on the device both, so that nothing waits;
    reading one of them does.
    """

    def make(device, read=False):
        model = torch.nn.BatchNorm1d(4).to(device)
        other = average(model)
        kept = getattr(other, "module", other)

        def step():
            model(torch.ones(2, 4, device=device)).sum().backward()
            for to, of in zip(kept.buffers(), model.buffers(), strict=True):
                to.copy_(of)
            if read:
                kept.running_mean.sum().item()

        return step

    assert candidates(make) == {}
    assert candidates(lambda device: make(device, read=True)) == {".item()": 1}


def test_a_copy_of_what_the_host_has_is_the_hosts():
    """Reading it makes nobody wait."""

    def make(device):
        number = copy.deepcopy(torch.tensor(1.0))
        return lambda: number.item()

    assert candidates(make) == {}


def test_a_default_device_is_the_devices():
    """What set_default_device() puts there is the device's, also made in a step."""

    def make(device):
        torch.set_default_device(device)
        return lambda: torch.ones(3).sum().item()

    try:
        assert candidates(make) == {".item()": 1}
    finally:
        torch.set_default_device(None)
        # What is left of it would stop torch 2.8's get_default_device() in later tests.
        del torch._GLOBAL_DEVICE_CONTEXT.device_context


def test_a_tensor_that_is_computed_with_parameters_is_theirs():
    """A mask that was made out of sight and without a device is where the weights are: else the
    step would not run on a GPU.
    """

    def make(device):
        weight, kept = torch.nn.Parameter(torch.ones(3)), []

        def step():
            kept or kept.append(torch.tril(torch.ones(3, 3)))
            (kept[0] @ weight).sum().backward()
            kept[0].any().item()

        return step

    assert candidates(make) == {".item()": 1}


def test_the_copy_that_stands_for_the_transfer_is_differentiable():
    """Gradients flow through a batch that is sent, in the steps that are watched too."""
    weight, placement = torch.nn.Parameter(torch.ones(3)), Placement()
    host = torch.arange(3.0, requires_grad=False)
    with placement.observed(copies=True):
        source = torch.arange(3.0)
        sent = source.to(DEVICE)
        assert sent is not source
        assert placement.on_device(sent) and not placement.on_device(source)
        (weight * sent).sum().backward()
    assert weight.grad.tolist() == host.tolist()


def test_compiled_in_the_factory_compiles_afterwards():
    """What a factory runs while it is watched is compiled at its next call, and has no break."""
    import torch._dynamo.convert_frame as frames

    @torch.compile(backend="eager")
    def doubled(x):
        return 2 * x

    with Placement().observed():
        doubled(torch.ones(3))
    before = sum(frames.FRAME_COMPILE_COUNTER.values())
    doubled(torch.ones(3))
    assert sum(frames.FRAME_COMPILE_COUNTER.values()) == before + 1


@pytest.mark.parametrize(("read", "loss", "waits"), [
    ("bool(idx.max() >= 8)", "logits, targets", 1),
    ("bool((targets * 2).max() >= 8)", "logits, targets", 1),
    ("None", "logits[targets != -1], targets[targets != -1]", 3),  # and in the backward pass
    ("None", "logits[labels != -1], labels[labels != -1]", 3),  # of a storage of their own
    ("None", "logits, targets", 0),
    ("host.numpy()", "logits, targets", 0),  # the loader's own
    ("host[0].tolist()", "logits, targets", 0),
    ("chosen.tolist()", "logits, targets", 0),  # rows that the loader reads
])  # fmt: skip
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("make_batch", ["host.clone()", "data[chosen]", "torch.stack([*host])"])
def test_a_batch_that_a_cpu_need_not_send_is_the_devices(make_batch, ahead, read, loss, waits):
    """Its inputs and targets are used beside parameters, whether it is made in its step or in the
    one before; what it was copied from is the host's.
    """

    def make(device):
        table = torch.nn.Embedding(8, 8).to(device)
        host, data = torch.arange(8).reshape(2, 4), torch.arange(8).reshape(4, 2).repeat(1, 2)

        def batch():
            chosen = torch.tensor([0, 1])
            names = {"host": host, "data": data, "chosen": chosen, "torch": torch}
            return *eval(make_batch, names), chosen

        batches = [batch()]

        def step():
            if not ahead:
                batches[:] = [batch()]
            idx, targets, chosen = batches.pop()
            batches.append(batch())
            names = {"host": host, "idx": idx, "targets": targets, "chosen": chosen}
            names["labels"] = host[1].clone()
            eval(read, names)
            given = eval(loss, names | {"logits": table(idx)})
            torch.nn.functional.cross_entropy(*given).backward()

        return step

    assert sum(candidates(make).values()) == waits


class NeverGoneThrough(dict):
    """A dictionary that can be asked for a key only."""

    def __iter__(self):
        raise AssertionError("gone through all of it")

    keys = values = items = __iter__


def test_a_tensor_that_is_made_costs_the_same_however_many_there_are():
    """A script may make a hundred thousand of its data before its first step: a look at all of
    them, for each, took longer than a launch may.
    """
    placement = Placement()
    placement._known = NeverGoneThrough()
    with placement.observed():
        made = [torch.tensor([number]).clone() for number in range(3)]
        joined = torch.cat(made)
    assert len(placement._known) == 7
    assert not placement.on_device(joined)
