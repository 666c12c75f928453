"""Reports of made-up comparisons, each written once."""

import pytest

from compare.made_up import MADE
from salience.compare.report.page import write_report

WRITTEN = ["report.html", "report.md", "test.png", "curves.png", "cost.png"]


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """From the name of a made-up comparison to its directory with the report."""
    ready = {}

    def directory(name):
        if name not in ready:
            ready[name] = MADE[name](tmp_path_factory.mktemp("run") / name)
            swept = ["budgets.png"] if name == "budgets" else []
            expected = [*WRITTEN[:2], *swept, *WRITTEN[2:]]
            assert [path.name for path in write_report(ready[name])] == expected
        return ready[name]

    return directory
