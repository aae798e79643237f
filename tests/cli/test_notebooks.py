"""`jaxinfer notebooks`."""

import pytest

from tests.docs.pages import ROOT

ORIGINALS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_a_folder_gets_each_notebook_and_keeps_those_that_it_has(cli, tmp_path):
    folder = tmp_path / "new" / "folder"
    first = cli("notebooks", str(folder))
    assert first.code == 0 and [path.name for path in sorted(folder.iterdir())] == [path.name for path in ORIGINALS]
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == [path.read_bytes() for path in ORIGINALS]
    (mine,) = folder.glob("1-*")
    mine.write_text("mine")
    again = cli("notebooks", str(folder))
    assert again.code == 0 and f"{mine}  left as it was" in again.out and mine.read_text() == "mine"


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_cannot_be_a_folder_is_refused_in_one_line(cli, tmp_path, place):
    (tmp_path / "file").write_text("")
    outcome = cli("notebooks", str(tmp_path / place))
    assert outcome.code == 2 and outcome.last_line.startswith("error: ")
