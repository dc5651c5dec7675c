import dataclasses
import re

import pytest

from virl_tf import methods
from virl_tf.methods import EIM, GEIM, METHODS, VIRL, Method

# The table of the design: fusion as proposal, base, what the logit subtracts, target = base + net, recovered reward.
TABLE = {
    "eim": (False, "policy", "none", True, "policy"),
    "geim": (True, "policy", "policy", False, "target"),
    "virl": (True, "reward", "none", True, "target"),
}


@pytest.mark.parametrize("name", TABLE)
def test_rows_equal_the_table(name):
    assert METHODS[name] == Method(name, *TABLE[name])


def test_there_are_three_rows_and_each_knows_its_name():
    assert set(METHODS) == set(TABLE)
    assert all(name == method.name for name, method in METHODS.items())
    assert {EIM, GEIM, VIRL} == set(METHODS.values())
    assert next(iter(METHODS)) == "virl"  # the default comes first


def test_rows_are_data():
    with pytest.raises(dataclasses.FrozenInstanceError):
        VIRL.fusion = False
    ablation = dataclasses.replace(VIRL, name="virl_without_kde", fusion=False)
    assert ablation != VIRL
    assert VIRL.fusion


def test_the_docstring_shows_the_same_table():
    rows = re.findall(r"^\| (EIM|G-EIM|V-IRL) \|(.*)\|$", methods.__doc__, re.MULTILINE)
    cells = {name.replace("-", "").lower(): [cell.strip() for cell in row.split("|")] for name, row in rows}
    assert set(cells) == set(TABLE)
    for name, (fusion, base, offset, _, _) in TABLE.items():
        proposal, numerator, logit = cells[name][:3]
        assert proposal == ("mu_t" if fusion else "q_t")
        assert ("q*_t" in numerator) == (base == "reward")
        assert ("- log q_t" in logit) == (offset == "policy")
