"""Whether two measurements may be compared: by the tags that the caller names, and by no other."""

import pytest
from builders import FINGERPRINT, evidence, recording, replace

from stepguard.judge.comparable import (
    SOFTWARE,
    Tag,
    comparable,
    conditions_of,
    conditions_recorded,
    of_one_card,
)


def measured(**changes):
    """What evidence was measured under, its fingerprint changed."""
    return conditions_of(evidence(fingerprint=replace(FINGERPRINT, **changes)))


@pytest.mark.parametrize(("changes", "tag"), [
    ({"device_uuid": "GPU-5678"}, Tag.CARD),
    ({"driver": "580.200"}, Tag.MACHINE),
    ({"cuda": "13.1"}, Tag.SOFTWARE),
    ({"environment": {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}}, Tag.ENVIRONMENT),
])  # fmt: skip
def test_a_difference_counts_for_whoever_names_its_tag(changes, tag):
    """Others may compare the two all the same."""
    both = measured(), measured(**changes)
    assert {one.tag for one in comparable(*both)} == {tag}
    assert not comparable(*both, [other for other in Tag if other is not tag])


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [("GPU-1", "GPU-1", True), ("GPU-1", "GPU-2", False), ("", "", False), ("GPU-1", "", False)],
)
def test_one_card_is_known_by_its_id(then, now, same):
    """A CPU has none, so that nobody knows whether two are one."""
    first, second = recording(device_uuid=then), recording(device_uuid=now)
    assert of_one_card(first, second) is same


def test_a_recording_of_another_card_has_the_same_software():
    """Recordings of all cards of a kind are compared."""
    other = conditions_recorded(recording(device_uuid="GPU-5678"))
    assert not comparable(other, measured(), SOFTWARE)
    assert comparable(other, measured(), (Tag.CARD,))
