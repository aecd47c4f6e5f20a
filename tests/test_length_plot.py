"""The curves of time to success: their colours, and names of suites from somebody else."""

from lerobot_nb.results.figures import BLUE, VERMILION, figure_svg, length_plot
from lerobot_nb.results.records import EpisodeRecord


def records(suites):
    return [
        EpisodeRecord(
            suite,
            0,
            "task",
            "",
            index,
            index,
            success=index < number % 4,
            success_step=5 + index if index < number % 4 else None,
            end_reason="success" if index < number % 4 else "time_limit",
            n_steps=5 + index if index < number % 4 else 20,
        )
        for number, suite in enumerate(suites)
        for index in range(4)
    ]


def curves(suites):
    return length_plot(records(suites)).axes[1].lines


def test_suites_have_colours_that_mean_no_outcome():
    lines = curves(["one", "two", "three", "four", "five"])
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(lines) == 6
    assert not {line.get_color() for line in lines} & {BLUE, VERMILION}
    # of all: six of twenty have succeeded
    assert lines[0].get_ydata()[-1] == 100 * 6 / 20


def test_one_suite_and_many_have_one_curve():
    for suites in (["only"], [f"suite {number}" for number in range(9)]):
        assert len(curves(suites)) == 1


def test_names_of_suites_are_shown_as_they_are():
    figure = length_plot(records(["_hidden", r"$\frac{1$", "$x$"]))
    svg = figure_svg(figure)
    for name in (" hidden", r"$\frac{1$", "$x$"):
        assert name in svg
