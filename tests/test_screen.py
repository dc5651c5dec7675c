"""What commands print with."""

from pathlib import Path

from rich.table import Table

import experiments
from experiments.screen import screen, warn

NAMES = ["speed [m]", "rate [/s]", "[red]", "a:x:b", "end\\"]


def test_names_stand_as_they_are_in_texts_and_tables(capsys):
    table = Table(*NAMES, title=NAMES[1])
    table.add_row(*NAMES)
    screen(width=100).print("; ".join(NAMES), table)
    shown = capsys.readouterr().out
    for name in NAMES:
        assert shown.count(name) == 3 + (name == NAMES[1])


def test_all_commands_print_on_it():
    sources = Path(experiments.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "Console(" in path.read_text()] == ["screen.py"]


def test_a_warning_is_one_line_on_stderr_as_it_is(capsys):
    text = "column 'speed [m]': [/s] :x: " + "much is said " * 20
    warn(text)
    warn("nothing", quiet=True)
    assert capsys.readouterr() == ("", f"warning: {text}\n")
