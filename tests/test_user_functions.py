"""Functions of a user's own file."""

from virl_tf import InputError

import pytest

from experiments.user_functions import load_support, load_world


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", r"cannot be read: ZeroDivisionError\('division by zero'\)"),
        ("raise ValueError('mine')", "cannot be read: ValueError.'mine'.."),
        ("import no_such_module", "cannot be read: No module named 'no_such_module'"),
        ("def support(x", "cannot be read: .*never closed"),
        ("x = 1", "has no function 'support'"),
    ],
)
def test_what_a_file_raises_while_it_is_read_is_one_error(tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match=message):
        load_support(str(tmp_path / "mine.py"))


def test_a_world_may_be_a_dataclass(tmp_path):
    (tmp_path / "world.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class World:\n"
        "    n: int\n"
        "    seed: int\n"
    )
    assert load_world(str(tmp_path / "world.py")).function(3, 7).seed == 7
