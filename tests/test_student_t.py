"""Student's t, against scipy's and by its symmetry."""

import pytest
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from stepguard.core.student_t import t_quantile, t_tail

DEGREES = st.floats(1.0, 400.0)


@PROPERTY
@given(st.floats(-1000.0, 1000.0), DEGREES)
def test_the_tail_is_scipys(t, degrees):
    """Far out, and in the middle, where the sum of both tails is 1."""
    assert t_tail(t, degrees) == pytest.approx(special.stdtr(degrees, -t), rel=1e-8, abs=1e-300)
    assert t_tail(t, degrees) + t_tail(-t, degrees) == pytest.approx(1.0)


@PROPERTY
@given(st.floats(1e-12, 0.499), DEGREES)
def test_the_quantile_is_scipys(tail, degrees):
    """At all levels that rules have, whole degrees of freedom or not."""
    assert t_quantile(tail, degrees) == pytest.approx(-special.stdtrit(degrees, tail), rel=1e-8)
