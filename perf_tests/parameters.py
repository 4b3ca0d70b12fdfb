"""What the cases of several files are measured with: the seed's step, and one that a CPU can do."""

SEED = {"size": "124m", "batch": 64, "seq": 1024, "precision": "bf16", "compile": True}
NANO = {"size": "nano", "batch": 4, "seq": 64, "precision": "fp32", "compile": False}

# A train step accumulates gradients: what one GPU of a 4-GPU, 524,288-token step does.
SEED_STEP = SEED | {"micro_steps": 2}
NANO_STEP = NANO | {"micro_steps": 2}
