"""stepguard: a performance gate for GPT training steps, as a pytest plugin.

pytest perf_tests                                       # the suite
python -m stepguard run model.workloads:train_step size=124m batch=64
"""

from stepguard.core.allow import allow_sync
from stepguard.core.case import Case
from stepguard.core.metrics import default_gates

__all__ = ["Case", "__version__", "allow_sync", "default_gates"]
__version__ = "0.1.0"
