"""stepguard: a performance gate for GPT training steps, as a pytest plugin.

pytest perf_tests                                       # the suite
python -m stepguard run model.workloads:train_step size=124m batch=64
"""

from stepguard.case import Case

__all__ = ["Case", "__version__"]
__version__ = "0.1.0"
