"""Runs whose steps compute other numbers, or the same ones."""

from builders import cpu_evidence, evidence, replace
from inputs import LOSS_ALONE, OPERATORS, computing, counted_in, counting, pairs, recorded_of
from scenario import Run, Scenario

from stepguard.core.metrics import FLOPS
from stepguard.core.step_numbers import GRADIENT, LOSS, UPDATE, UPDATES, WHOLE, StepNumbers
from stepguard.judge.compare_numbers import FLOOR_SHARE, LIMITS

LAYERS = range(12)
ATTENTION = "gradient of h.{}.attn.c_attn.weight"
ADAMW = {"AdamW, group 0: lr = 0.0006": 1, "AdamW, group 0: eps = 1e-08": 1}


def numbers(loss=10.98, attention=0.0121, whole=1.0, updates=0.002, update=0.001, **changes):
    """The numbers of two steps of twelve layers, of whose attention a third moves."""
    thirds = [attention, 0.02, 0.4]
    of_steps = {LOSS: [[loss]] * 2, WHOLE: [[whole]] * 2, "gradient of wte.weight": [[0.5] * 3] * 2}
    of_steps |= {ATTENTION.format(layer): [thirds] * 2 for layer in LAYERS}
    of_steps |= {UPDATES: [[updates]] * 2, f"{UPDATE}wte.weight": [[update]] * 2}
    of_steps |= changes.pop("instead", {})
    return StepNumbers(listed=[*of_steps.items()], **changes)


BEFORE = computing(evidence(), numbers(), ADAMW)
FINE = computing(cpu_evidence(), numbers(single=True), ADAMW)


def against(before, now, **made):
    """A run that computes these numbers, whose recording has others."""
    return Run(computing(before, now, **{"options": ADAMW} | made), baseline=recorded_of(before))


def both_sides(now, pct):
    """HEAD computes these numbers and is so many percent slower than the other revision."""
    found = pairs(pct)
    sides = {"base": computing(found.base, numbers()), "head": computing(found.head, now)}
    return Run(pairs=replace(found, **sides))


def lacking(kind):
    """HEAD has no numbers of a kind, calls 12 operators less and is 2 % faster."""
    left = StepNumbers(listed=[one for one in numbers().listed if not one[0].startswith(kind)])
    run = both_sides(left, -2.0)
    return Run(pairs=replace(run.pairs, head=less(run.pairs.head)))


def less(found, **counts):
    """The evidence, of a step that calls 12 operators less."""
    calls = {"aten.mm.default": 24, "aten.add.Tensor": 2364}
    return counting(found, detail={OPERATORS: calls}, **{OPERATORS: 2388} | counts)


APART = "not judged: launches of this tree compute others"
BIASES = {f"gradient of h.{layer}.bias": [[0.002] * 3] * 2 for layer in LAYERS}
NAN = [[0.0121, 0.02, 0.4], [0.0121, None, 0.4]]
COARSE, SINGLE = 0, 1
NUMBERED = (
    Scenario("numbers-of-attention",
             "A wrong temperature: in twelve layers a third of one gradient, with loss and update.",
             "CHANGED", "WORK_MOVED",
             against(BEFORE, numbers(10.975, 0.0213, updates=0.0035))),
    Scenario("numbers-not-finite", "The fifth layer's gradient overflows in the second step.",
             "CHANGED", "WORK_MOVED", against(BEFORE, numbers(instead={ATTENTION.format(5): NAN}))),
    Scenario("numbers-before-the-clip",
             "The loss is not divided by the micro-steps: the clip hides it from all gradients.",
             "CHANGED", "WORK_MOVED", against(BEFORE, numbers(whole=2.0))),
    Scenario("numbers-of-an-option", "The optimizer's own words come before what they do.",
             "CHANGED", "WORK_MOVED",
             against(BEFORE, numbers(10.97), options={"AdamW, group 0: eps = 0.001": 1})),
    Scenario("numbers-gone",
             "The step returns no loss any more, and no optimizer steps: nothing can be compared.",
             "CHANGED", "WORK_MOVED", against(BEFORE, StepNumbers())),
    Scenario("numbers-of-launches-differ",
             "What the step draws has no seed: two launches of this tree disagree.",
             "same", "WITHIN_LIMIT", against(BEFORE, numbers(3.1, apart=APART))),
    Scenario("numbers-of-launches-differed",
             "The step has a seed now: launches disagreed when it was recorded.",
             "same", "WITHIN_LIMIT",
             Run(BEFORE,
                 baseline=recorded_of(computing(BEFORE, numbers(3.1, apart=APART), ADAMW)))),
    Scenario("numbers-of-launches-differ-and-an-option",
             "Options are no chance: another eps counts, whatever the step draws.",
             "CHANGED", "WORK_MOVED",
             against(BEFORE, numbers(3.1, apart=APART),
                     options={"AdamW, group 0: eps = 0.001": 1})),
    Scenario("numbers-of-frozen-parameters",
             "The smallest of three parameters a layer gets no gradient any more.",
             "CHANGED", "WORK_MOVED",
             Run(less(computing(FINE, numbers(single=True), ADAMW)),
                 baseline=recorded_of(computing(FINE, numbers(single=True, instead=BIASES),
                                                ADAMW)))),
    Scenario("numbers-of-zeros",
             "Gradients are zero where they were none: zero_grad has another form.",
             "same", "WITHIN_LIMIT",
             against(BEFORE, numbers(instead={name: [[0.0] * 3] * 2 for name in BIASES}))),
    Scenario("numbers-not-seen",
             "The optimizer is compiled: its gradients and its update are not seen, which is said.",
             "same", "WITHIN_LIMIT", against(BEFORE, LOSS_ALONE, options=())),
    Scenario("numbers-not-seen-and-less-work",
             "The backward pass is dropped, and the loss equal: no gain.",
             "CHANGED", "WORK_MOVED",
             Run(less(computing(FINE, LOSS_ALONE), **{FLOPS: 10**12}), baseline=recorded_of(FINE))),
    *(
        Scenario(
            f"numbers-{field}-{'single' if of else 'coarse'}-{side}",
            "The limits are those of the precision in which products round.",
            status,
            reason,
            against(FINE if of else BEFORE, numbers(single=bool(of), **moved)),
        )
        for of in (COARSE, SINGLE)
        for kind, base, field in (
            (GRADIENT, 0.0121, "attention"),
            (LOSS, 10.98, "loss"),
            (WHOLE, 1.0, "whole"),
            (UPDATES, 0.002, "updates"),
            (UPDATE, 0.001, "update"),
        )
        for side, beyond, status, reason in (
            ("within", 0.99, "same", "EQUAL" if of else "WITHIN_LIMIT"),
            ("beyond", 1.01, "CHANGED", "WORK_MOVED"),
        )
        for moved in [{field: base * (1 + beyond * LIMITS[kind][of])}]
    ),
    Scenario("numbers-below-the-floor",
             "The bias of a key has no gradient but rounding, which may be anything.",
             "same", "WITHIN_LIMIT",
             Run(computing(evidence(),
                           numbers(attention=0.9 * LIMITS[GRADIENT][0] * FLOOR_SHARE)),
                 baseline=recorded_of(computing(evidence(), numbers(attention=0.0))))),
    Scenario("numbers-of-renamed-parameters",
             "A module has another name, and its parameters their order.",
             "same", "WITHIN_LIMIT",
             against(BEFORE,
                     StepNumbers(listed=[
                                     (k.replace("attn", "mix"), v) for k, v in numbers().listed]))),
    Scenario("numbers-equal-and-less-work",
             "The same numbers of fewer operators and FLOPs: a gain, to be kept.",
             "FASTER", "COUNTER_FELL",
             Run(less(FINE, **{FLOPS: 10**12}), baseline=recorded_of(FINE))),
    Scenario(
        "numbers-moved-and-less-work",
        "A residual is dropped: the first line has the operator, and what it does to the numbers.",
        "CHANGED", "WORK_MOVED",
        Run(less(computing(FINE, numbers(10.975, 0.0213, single=True), ADAMW)),
            baseline=recorded_of(FINE))),
    Scenario("numbers-unknown-and-less-work",
             "Fewer operators and FLOPs of a step whose numbers nobody knows.",
             "CHANGED", "WORK_MOVED",
             Run(less(cpu_evidence(), **{FLOPS: 10**12}), baseline=recorded_of(cpu_evidence()))),
    Scenario("pairs-numbers-of-a-faster-step",
             "2 % faster, and it computes something else: no gain.",
             "CHANGED", "WORK_MOVED", both_sides(numbers(10.9, 0.0213), -2.0)),
    Scenario("pairs-numbers-of-a-dropped-update",
             "With a learning rate of 0 no optimizer steps any more: a faster step is no gain.",
             "CHANGED", "WORK_MOVED",
             lacking(UPDATE)),
    Scenario("pairs-numbers-of-returned-gradients",
             "torch.autograd.grad stands for a backward pass: all else is equal, and it is faster.",
             "FASTER", "BEYOND_MARGIN", lacking(WHOLE)),
    Scenario("pairs-numbers-equal-and-less-flops",
             "2 % faster with a tenth less FLOPs, and the same numbers.",
             "FASTER", "BEYOND_MARGIN",
             Run(pairs=counted_in(both_sides(numbers(), -2.0).pairs, **{FLOPS: 10**14}))),
)  # fmt: skip
