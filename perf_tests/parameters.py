"""Parameters that the cases of several files share: the seed's step, and one for a CPU."""

SEED = {"size": "124m", "batch": 64, "seq": 1024, "precision": "bf16", "compile": True}
NANO = {"size": "nano", "batch": 4, "seq": 64, "precision": "fp32", "compile": False}

# A train step accumulates gradients: what one GPU of a 4-GPU, 524,288-token step does. Nothing is
# learned: under a power cap what a step takes depends on the numbers that it multiplies. On an H200
# it changes by 2.3 % over the first 80 steps at a learning rate of 6e-4, and not at all at 0
# (96e72680:studies/training_progress), where the same kernels run.
STEP = {"micro_steps": 2, "lr": 0.0}
SEED_STEP = SEED | STEP
NANO_STEP = NANO | STEP
