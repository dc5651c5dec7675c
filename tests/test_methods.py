import dataclasses
import re

from virl_tf import methods
from virl_tf.methods import ABLATIONS, EIM, GEIM, METHODS, PAPER_METHODS, VIRL

import pytest


def test_the_paper_has_three_rows_and_each_knows_its_name():
    assert {EIM, GEIM, VIRL} == set(PAPER_METHODS)
    assert {method.name for method in PAPER_METHODS} == {"virl", "geim", "eim"}
    assert all(method.importance_weights for method in PAPER_METHODS)
    assert all(name == method.name for name, method in METHODS.items())
    assert len(METHODS) == len(PAPER_METHODS) + len(ABLATIONS)
    assert next(iter(METHODS)) == "virl"  # the default comes first


@pytest.mark.parametrize(
    ("name", "cell", "value"),
    [
        ("virl_no_kde", "fusion", False),
        ("virl_no_weights", "importance_weights", False),
        ("eim_fusion", "fusion", True),
        ("geim_fusion_logit", "logit_offset", "proposal"),
    ],
)
def test_ablations_differ_in_one_cell(name, cell, value):
    method = METHODS[name]
    original = METHODS[method.family]
    assert original in PAPER_METHODS
    assert getattr(original, cell) != value
    assert method == dataclasses.replace(original, name=name, **{cell: value})


def test_the_docstring_shows_the_same_table():
    rows = re.findall(r"^\| (EIM|G-EIM|V-IRL) \|(.*)\|$", methods.__doc__, re.MULTILINE)
    cells = {
        name.replace("-", "").lower(): [cell.strip() for cell in row.split("|")]
        for name, row in rows
    }
    assert set(cells) == {method.name for method in PAPER_METHODS}
    for row in PAPER_METHODS:
        proposal, base, logit, target, reward, ends = cells[row.name]
        assert proposal == ("mu_t" if row.fusion else "q_t")
        assert base == ("log q*_t" if row.base == "reward" else "log q_t")
        assert logit == {"none": "net", "policy": "net - log q_t"}[row.logit_offset]
        assert target.startswith(f"{base} + net" if row.accumulate else "net = R_t")
        recovered = "net" if row == GEIM else "log q*_{t+1} = the target"
        assert reward == ("log q_{t+1}" if row.reward == "policy" else recovered)
        assert ends == ("may end early" if row.converges else "after T")
