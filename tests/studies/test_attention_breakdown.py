"""The table of attention's parts: shares of known times."""

from model.explicit import PARTS
from studies.attention_breakdown.measure import THEIRS, table


def test_shares_of_known_times():
    """Of attention for each part, of the forward pass for all of them, in each lane."""
    host = dict.fromkeys(PARTS, 1.0) | {"softmax": 5.0, "outside_attention": 10.0}
    rows = [line.split("  ") for line in table({"host": host, "GPU": host})]
    found = {row[0].strip(): [one.strip() for one in row[1:] if one.strip()] for row in rows}
    assert found["softmax"] == ["50.0", "50.0", "2.8"]
    assert found["rope"] == ["10.0", "10.0", "34.4"]
    assert found["attention, % of forward"] == ["50.0", "50.0", "68.5"]
    assert set(THEIRS) == set(PARTS)


def test_a_model_without_rotary_positions():
    """Has no row of them."""
    host = dict.fromkeys((part for part in PARTS if part != "rope"), 1.0)
    assert not any(line.startswith("rope") for line in table({"host": host}))
