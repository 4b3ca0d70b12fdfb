"""Student's t distribution. Its tail is an incomplete beta function (DLMF 8.17.22, evaluated by the
method of Lentz); the quantile is found by Newton's method.
"""

import math
from functools import lru_cache
from statistics import NormalDist


def t_tail(t: float, degrees: float) -> float:
    """Return the probability that T exceeds ``t``."""
    if t < 0:
        return 1 - t_tail(-t, degrees)
    near, far = t * t / (degrees + t * t), degrees / (degrees + t * t)  # they add up to 1
    if far < (degrees + 2) / (degrees + 5):  # where the fraction converges fast
        return _incomplete_beta(far, near, degrees / 2, 0.5) / 2
    return 0.5 - _incomplete_beta(near, far, 0.5, degrees / 2) / 2


@lru_cache(maxsize=1 << 10)  # quiet pairs have the same degrees: the prior's and their own
def t_quantile(tail: float, degrees: float) -> float:
    """Return the value that T exceeds with probability ``tail``. Raises ValueError unless that is
    in (0, 0.5) and ``degrees`` is positive.
    """
    if not (0 < tail < 0.5 and 0 < degrees < math.inf):
        raise ValueError(f"tail {tail!r} of {degrees!r} degrees of freedom")
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    scale /= math.sqrt(degrees * math.pi)
    normal = -NormalDist().inv_cdf(tail)
    log_t, step = math.log(normal + (normal**3 + normal) / (4 * degrees)), math.inf
    # The logarithm of the tail is concave in log t, so Newton's steps converge from any start.
    while abs(step) > 1e-7:  # the next step would be as small as its square
        t = math.exp(log_t)
        density = scale * (1 + t * t / degrees) ** (-(degrees + 1) / 2)
        found = t_tail(t, degrees)
        step = math.log(found / tail) * found / (t * density)
        log_t += step
    return math.exp(log_t)


def _incomplete_beta(x: float, rest: float, a: float, b: float) -> float:
    """Return the regularized I_x(a, b), where its fraction converges; ``rest`` is 1 - x."""
    if not x:
        return 0.0
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction, m, factor = d, 0, 0.0
    while abs(factor - 1) > 1e-14:
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        factor = 1.0
        for term in (even, odd):
            c, d = 1 + term / c, 1 / (1 + term * d)
            factor *= c * d
        fraction *= factor
    return math.exp(a * math.log(x) + b * math.log(rest) - log_beta) / a * fraction
