"""Points read off the paper's figures, beside ours: what is drawn, and what is refused."""

from pathlib import Path

from virl_tf.validation import InputError

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from experiments.figures import draw
from experiments.figures.figure_2b import CURVES, finish
from experiments.figures.figure_4 import OF_THE_PAPER
from experiments.figures.published import lay_published, read_published

HEADER = "stage,method,components,modes,value\n"
ONE = "training,virl,10,5,0.05\n"


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "points.csv"
        path.write_text(text)
        return path

    return write


def test_every_curve_has_its_points_in_order_and_a_label(file):
    text = HEADER + "training,virl,10,50,0.1\n" + ONE + "training,eim,1,20,1.5\n"
    _, axes = plt.subplots()
    lay_published(axes, read_published(file(text), CURVES), CURVES)
    virl, eim = axes.get_lines()
    assert (list(virl.get_xdata()), list(virl.get_ydata())) == ([5, 50], [0.05, 0.1])
    assert (list(eim.get_xdata()), list(eim.get_ydata())) == ([20], [1.5])
    assert virl.get_label() == "V-IRL 10c, the paper's reward"
    assert virl.get_color() != eim.get_color()
    plt.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "has no column stage; it needs stage, method, components, modes, value"),
        (HEADER, "has no rows"),
        ("", "cannot be read"),
        (HEADER + ONE + ONE, "row 1: this point stands there already"),
        (HEADER + "inference,virl,10,5,0.1\n", "row 0: inference, virl, 10 is no curve of this"),
        (HEADER + ONE + "training,virl,10,9,zero\n", "row 1: value must be a positive number"),
        (HEADER + "training,virl,10,-9,1\n", "row 0: modes must be a positive number"),
        (HEADER + "training,virl,10,9,\n", "row 0: value must be a positive number, got nan"),
        (HEADER + "training,virl,10,5.5,1\n", "row 0: modes must be a whole number, got 5.5"),
        (HEADER + "training,virl,10,5,1,7\n", "has rows of more values than its columns, stage, "),
    ],
)
def test_other_tables_are_refused(file, text, message):
    with pytest.raises(InputError, match=message) as error:
        read_published(file(text), CURVES)
    assert "\n" not in str(error.value)


def test_spaces_behind_commas_are_no_part_of_a_name(file):
    points = read_published(file((HEADER + ONE).replace(",", ", ")), CURVES)
    assert points.to_dict("records") == read_published(file(HEADER + ONE), CURVES).to_dict(
        "records"
    )


def test_an_estimate_below_zero_leaves_the_axis_as_it_is():
    """As in more than two dimensions, where I-projections are of draws."""
    ours = pd.DataFrame({"method": "virl", "components": 10, "modes": [5, 10], "stage": "training"})
    ours = ours.assign(reported=[-0.002, 0.4], status="finished")
    _, axes = plt.subplots()
    finish(axes, ours, ("training",))
    assert axes.get_ylim()[0] == pytest.approx(0.2)


def test_points_far_below_ours_and_between_our_numbers_of_modes_are_within_the_axes(file):
    ours = pd.DataFrame(
        {"stage": ["training"], "method": ["virl"], "components": [10], "modes": [5]}
    ).assign(reported=1.0, status="finished")
    points = read_published(file(HEADER + "training,virl,10,7,0.001\n"), CURVES)
    _, axes = plt.subplots()
    lay_published(axes, points, CURVES)
    finish(axes, ours, ("training",), published=points)
    assert axes.get_ylim()[0] < 0.001
    assert list(axes.get_xticks()) == [5, 7]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "V-IRL 10c, the paper's reward"
    ]
    plt.close()


def test_other_figures_take_no_points(file, tmp_path):
    with pytest.raises(InputError, match="--published is for figures 2b and 4"):
        draw("3", [], None, tmp_path, published=file(HEADER + ONE))
    with pytest.raises(InputError, match="is no curve of this figure"):
        draw("4", [], None, tmp_path, published=file(HEADER + ONE))


def test_the_points_are_in_the_committed_figures_picture(call, file, tmp_path):
    points = file(HEADER + "inference,virl,10,20,0.4\n")
    for options in (["plain"], ["with", "--published", points]):
        name, *given = options
        assert call("figure", "4", *given, "--out", tmp_path / name)[0] == 0
    plain, laid = ((tmp_path / name / "figure_4.png").read_bytes() for name in ("plain", "with"))
    assert plain != laid
    assert len(read_published(points, OF_THE_PAPER)) == 1


@pytest.mark.parametrize("number", ["2b", "4"])
def test_results_of_another_task_are_not_drawn(number, tmp_path):
    walks = Path(__file__).parent.parent / "experiments" / "results" / "grid_walker"
    with pytest.raises(InputError, match="holds results of grid_walker, not of gaussians"):
        draw(number, [walks], None, tmp_path)
    assert not list(tmp_path.iterdir())
