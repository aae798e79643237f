"""docs/suites.md names what there is. Its commands are run by tests/docs/test_commands.py, as those of every page."""

import re
from pathlib import Path

from jaxinfer.bench.suite import SUITES as MADE
from jaxinfer.cli.bench_suite import SUITES

PAGE = (Path(__file__).parents[2] / "docs" / "suites.md").read_text()


def test_the_page_and_the_command_name_every_suite():
    assert list(SUITES) == list(MADE)
    assert re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE) == list(SUITES)
