"""The workloads that stepguard guards: GPT-2, its tokens, and one training step of it.

Nothing in this package knows about the measuring engine. A workload is an object with a
``step()`` method; any model that offers one can be guarded in the same way.

    python -c "from model.workloads import train_step; \
        print(train_step(size='nano', batch=2, seq=64, precision='fp32', \
                         compile=False, device='cpu').step())"
"""
