"""What commands print with."""

from experiments.screen import warn


def test_a_warning_is_one_line_on_stderr_as_it_is(capsys):
    text = "column 'speed [m]': [/s] :x: " + "much is said " * 20
    warn(text)
    warn("nothing", quiet=True)
    assert capsys.readouterr() == ("", f"warning: {text}\n")
