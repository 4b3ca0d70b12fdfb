"""Student's t distribution. With t = sqrt(degrees) / tan(angle) its tail is the integral of
sin(angle) ** (degrees - 1), which 64 points of Gauss and Legendre know to nine digits for 1 to 400
degrees of freedom. The angle is a square, so that the integrand is smooth at 0.
"""

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

_ROOTS, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_SQUARES, _WEIGHTS = ((_ROOTS + 1) / 2) ** 2, _WEIGHTS * (_ROOTS + 1) / 2


def t_tail(t: float, degrees: float) -> float:
    """Return the probability that T exceeds ``t``."""
    if t < 0:
        return 1 - t_tail(-t, degrees)
    angle = math.atan2(math.sqrt(degrees), t)
    integral = angle * float(_WEIGHTS @ np.sin(angle * _SQUARES) ** (degrees - 1))
    return integral * _scale(degrees) / math.sqrt(math.pi)


@lru_cache(maxsize=1 << 10)  # quiet pairs have the same degrees: the prior's and their own
def t_quantile(tail: float, degrees: float) -> float:
    """Return the value that T exceeds with probability ``tail``, which is below a half."""
    scale, normal = _scale(degrees) / math.sqrt(degrees * math.pi), -NormalDist().inv_cdf(tail)
    log_t, step = math.log(normal + (normal**3 + normal) / (4 * degrees)), math.inf
    # The logarithm of the tail is concave in log t, so Newton's steps converge from any start.
    while abs(step) > 1e-7:  # the next step would be as small as its square
        t, found = math.exp(log_t), t_tail(math.exp(log_t), degrees)
        density = scale * (1 + t * t / degrees) ** (-(degrees + 1) / 2)
        step = math.log(found / tail) * found / (t * density)
        log_t += step
    return math.exp(log_t)


def _scale(degrees: float) -> float:
    return math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
