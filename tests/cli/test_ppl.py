"""`jaxinfer ppl`: a line for each file, each token's share if asked for."""

import csv
import math

import pytest

from jaxinfer.llm.types import Delta
from jaxinfer.protocol.logprobs import TokenLogprob


@pytest.fixture
def even(model):
    """A model to which each token is one of four."""

    def script(prompt_ids, params):
        assert params.prompt_logprobs == 0
        first, *later = prompt_ids
        entries = [TokenLogprob(i, bytes([i]), -math.log(4), 1) for i in later]
        yield Delta(0, "", [1], "length", prompt_logprobs=[TokenLogprob(first, b"", None, None), *entries])

    model.script = script
    return model


def test_one_token_has_no_standard_error(cli, even, tmp_path):
    (tmp_path / "a.txt").write_text("ab")
    (tmp_path / "b.txt").write_text("x")
    assert "nan" not in cli("ppl", str(tmp_path / "a.txt"), str(tmp_path / "b.txt")).out


def test_a_terminal_gets_columns_in_the_place_of_markdown(cli, even, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("x" * 40)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _, head, line = cli("ppl", str(tmp_path / "a.txt")).out.splitlines()
    assert head.index("nats/token") == line.index("1.3863") and "|" not in head + line


def test_a_line_for_each_file_and_one_for_all(cli, even, tmp_path):
    (tmp_path / "a.txt").write_text("x" * 40)
    (tmp_path / "b.jsonl").write_text('{"body": "abc"}\n{"body": "de"}\n')
    outcome = cli("ppl", str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl"), "--column", "body", "--window", "8")
    assert outcome.code == 0
    said, head, _, *lines = outcome.out.splitlines()
    assert said == "windows of 8 tokens, 4 apart; each text's first token is not scored"
    assert head.startswith("| file | texts | tokens scored | nats/token | +- | perplexity |")
    assert [line.split(" | ")[:7] for line in lines] == [
        ["| a.txt", "1", "40", "1.3863", "0.0000", "4.0000", "0.0000"],
        ["| b.jsonl", "2", "5", "1.3863", "0.0000", "4.0000", "0.0000"],
        ["| all", "3", "45", "1.3863", "0.0000", "4.0000", "0.0000"],
    ]


@pytest.mark.parametrize("words", [["{}"], ["demo", "{}"], ["-m", "demo", "{}"]])
def test_the_model_is_the_first_word_unless_that_is_a_file(cli, even, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("xyz")
    outcome = cli("ppl", *(word.format("a.txt") for word in words))
    assert outcome.code == 0 and "| a.txt | 1 | 3 |" in outcome.out, outcome.err
    assert [config.model for config in even.configs] == ["demo"]


def test_every_scored_token_is_written_with_its_place(cli, even, tmp_path):
    (tmp_path / "b.jsonl").write_text('{"text": "a,c"}\n{"text": "de"}\n')
    assert cli("ppl", str(tmp_path / "b.jsonl"), "--csv", str(tmp_path / "out.csv")).code == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    assert rows == [
        ("b.jsonl", text, position, str(ord(char)), char, "-1.386294")
        for text, position, char in zip("11122", "12312", "a,cde", strict=True)
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--window", "9999"], "error: --window must be 2 to "),
        (["--window", "8", "--stride", "8"], "error: --stride must be less than the window"),
        (["--csv", "there/is/none.csv"], "error: folder not found: there/is"),
    ],
)
def test_what_cannot_be_measured_is_refused(cli, even, tmp_path, arguments, says):
    (tmp_path / "a.txt").write_text("xyz")
    outcome = cli("ppl", str(tmp_path / "a.txt"), *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.last_line.startswith(says)


def test_a_file_that_is_not_there_is_refused_before_the_model_starts(cli, even, tmp_path):
    assert cli("ppl", str(tmp_path / "a.txt")).last_line.startswith("error: file not found: ")
    assert not even.made
