"""Functions of a user's own file."""

import importlib
import sys
from pathlib import Path

from virl_tf import InputError
from virl_tf.persistence.run_folder import RunFolder

import pytest

from experiments.user_functions import load_outcome, load_support, load_world, take_corrected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", r"cannot be read: ZeroDivisionError\('division by zero'\)"),
        ("raise ValueError('mine')", "cannot be read: ValueError.'mine'.."),
        ("import no_such_module", "cannot be read: No module named 'no_such_module'"),
        ("def support(x", "cannot be read: .*never closed"),
        ("import sys; sys.exit(0)", r"cannot be read: SystemExit\(0\)"),
        ("x = 1", "has no function 'support'"),
    ],
)
def test_what_a_file_raises_while_it_is_read_is_one_error(tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match=message):
        load_support(str(tmp_path / "mine.py"))


def test_what_a_function_raises_is_one_line_that_names_its_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def outcome(x, kept_back):\n    return {'a': 1.0 / len(x)}\n")
    named = load_outcome(str(path))
    assert named.function([0], [0]) == {"a": 1.0}
    with pytest.raises(InputError) as error:
        named.function([], [])
    what = "outcome raised ZeroDivisionError: float division by zero in line 2."
    assert str(error.value) == f"--outcome {path}: {what}"


def test_a_function_may_import_from_its_folder_whose_name_may_hold_a_colon(tmp_path):
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "only_here.py").write_text("limit = 3\n")
    text = "def support(x):\n    from only_here import limit\n    return x < limit\n"
    (folder / "mine.py").write_text(text)
    assert load_support(str(folder / "mine.py")).function(2)
    assert load_support(f"{folder / 'mine.py'}:support").function(2)
    assert str(folder) not in sys.path


def test_what_the_library_refuses_within_a_function_stays_as_it_is(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import virl_tf\ndef support(x):\n    return virl_tf.load(x)\n")
    with pytest.raises(InputError, match=r"^\S*/none is not a run folder"):
        load_support(str(path)).function(tmp_path / "none")


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


@pytest.mark.parametrize("form", ["{folder}/mine.py", "mine:support"])
def test_what_is_beside_a_function_can_be_imported(form, tmp_path, monkeypatch):
    """Of the installed command the working directory is not on the path."""
    (tmp_path / "beside_mine.py").write_text("inside = True\n")
    text = "from beside_mine import inside\ndef support(x):\n    return inside\n"
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    here = ("", str(tmp_path), str(Path(__file__).parent.parent))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in here])
    before = list(sys.path)
    try:
        assert load_support(form.format(folder=tmp_path)).function(0) is True
    finally:
        for name in ("mine", "beside_mine"):
            sys.modules.pop(name, None)
    assert sys.path == before


def test_an_edited_module_is_another_one_as_an_edited_file_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []
    for value in ("True", "False", "True"):
        (tmp_path / "my_bounds.py").write_text(f"def support(x):\n    return {value}\n")
        found += [load_support(of).identity for of in ("my_bounds:support", "my_bounds.py")]
        del sys.modules["my_bounds"]
        importlib.invalidate_caches()
    assert found[0] == found[1] == found[4]
    assert found[2] == found[3] != found[0]
    assert load_support("sys:getsizeof").identity == "sys:getsizeof"


def test_a_function_may_be_corrected_until_something_is_made_by_it(tmp_path):
    first, other = {"outcome": "a.py 1", "seed": 0}, {"outcome": "a.py 2", "seed": 1}
    corrected = first | {"outcome": "a.py 2"}
    take_corrected(tmp_path / "none", first, "outcome", "judge.csv")
    assert not (tmp_path / "none").exists()
    RunFolder.open(tmp_path, first)
    take_corrected(tmp_path, other, "outcome", "judge.csv")
    assert RunFolder(tmp_path).config == first  # another seed is another command
    take_corrected(tmp_path, corrected, "outcome", "judge.csv")
    assert RunFolder.open(tmp_path, corrected).config == corrected
    (tmp_path / "judge.csv").touch()
    with pytest.raises(InputError, match="has rows by another --outcome; remove it"):
        take_corrected(tmp_path, first, "outcome", "judge.csv")
    take_corrected(tmp_path, corrected, "outcome", "judge.csv")
    assert RunFolder(tmp_path).config == corrected
