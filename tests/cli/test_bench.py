"""`jaxinfer bench VERB` and `profile`: options, refusals, where a report goes."""

import dataclasses
import io
import json
import re
import subprocess
import sys

import pytest

from jaxinfer.bench import compare, kernels, latency, machine, profile, sanity, serve, suite, throughput
from jaxinfer.bench.report import Report, Table
from jaxinfer.cli import main
from jaxinfer.cli.bench import VERBS
from jaxinfer.cli.checklist import Checklist
from jaxinfer.llm.events import Event
from tests.cli.test_main import PATH

REPORT = Report("bench", [("commit", "abc")], [Table("speed", ("shape", "tok/s"), [("1x128", 5.0)])])


@pytest.mark.parametrize("verb", VERBS)
def test_help_imports_no_jax(verb):
    check = (
        f"import sys; sys.argv[1:] = ['bench', {verb!r}, '--help']\ntry:\n    from jaxinfer.cli import main; main()\n"
    )
    check += "finally:\n    assert not {'jax', 'numpy', 'flax'} & set(sys.modules), sorted(sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, env=PATH, check=True)
    assert done.stdout.startswith(f"Usage: jaxinfer bench {verb}")
    assert "--compare" in done.stdout


def test_bench_lists_its_verbs(cli):
    assert all(f"  {verb}" in cli("bench", "--help").out for verb in VERBS)


@pytest.fixture
def asked(monkeypatch, known_names) -> list[tuple[object, ...]]:
    """What latency.run and serve.run were asked for; they return REPORT."""
    calls: list[tuple[object, ...]] = []

    def run(*arguments):
        calls.append(arguments)
        return REPORT

    monkeypatch.setattr(latency, "run", run)
    monkeypatch.setattr(serve, "run", run)
    return calls


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


PUBLISHING = {
    "bench latency": latency,
    "bench throughput": throughput,
    "bench serve": serve,
    "bench kernels": kernels,
    "bench suite vllm": suite,
    "bench compare --a http://h:1 --b http://h:2 --vocab-size 9": compare,
    "profile": profile,
    "sanity": sanity,
}


@pytest.mark.parametrize("command", PUBLISHING)
def test_a_report_begins_on_a_line_of_its_own_and_nothing_is_below_it(monkeypatch, command):
    """On a terminal, where a spinner was in the last line until then."""
    screen = Terminal()

    def measure(*arguments, **named):
        (checklist, *_) = [x if isinstance(x, Checklist) else x.__self__ for x in arguments if callable(x)]
        checklist(Event("measure", "something long"))
        assert "\x1b[?25l" in screen.getvalue(), "the spinner has begun"
        return (REPORT, []) if command.startswith("bench suite") else REPORT

    monkeypatch.setattr(PUBLISHING[command], "run", measure)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, screen)
    with pytest.raises(SystemExit) as end:
        main(command.split())
    assert end.value.code == 0
    before, report, after = screen.getvalue().partition(REPORT.as_markdown(width=80))
    assert report and after == ""
    assert re.search(r"\x1b\[2K(?:\x1b\[[0-9;?]*[A-Za-z]|\r)*$", before), "the spinner's line is empty again"


def test_every_verb_of_bench_publishes_so():
    assert {*VERBS} - {"show"} == {command.split()[1] for command in PUBLISHING if command.startswith("bench ")}


def test_shapes_are_prompts_alone_batches_at_contexts_and_those_named(cli, asked):
    flags = ("--prompt-lengths", "8,16", "--batch-sizes", "1,4,2", "--context", "32,64", "--shapes", "1x16,3x5")
    outcome = cli("bench", "latency", "tiny", *flags, "--max-num-seqs", "4")
    assert outcome.code == 0
    resolved, shapes, *_ = asked[0]
    assert (resolved.config.model, resolved.config.max_num_seqs) == ("tiny", 4)
    assert list(map(str, shapes)) == ["1x8", "1x16", "4x32", "2x32", "4x64", "2x64", "3x5"]


@pytest.mark.parametrize(
    ("verb", "tokens"),
    [
        (["bench", "latency"], 1153),
        (["bench", "latency", "--prompt-lengths", "8", "--context", "8", "--cached-prefix", "200"], 233),
        (["bench", "throughput", "--loads", "1:8:8,1:100:29"], 129),
        (["profile", "--prompt-length", "100"], 142),
        (["profile", "--prompt-length", "128", "--prefill"], 129),
    ],
)
def test_lengths_that_cannot_fit_are_refused_before_anything_is_measured(cli, monkeypatch, verb, tokens):
    monkeypatch.delattr(machine, "measure_limits")
    outcome = cli(*verb, "--max-model-len", "128")
    assert outcome.code == 2
    assert outcome.last_line == (
        f"error: prompt and answer must have at most 128 tokens together (--max-model-len), got {tokens}; shorten them"
    )


@pytest.mark.parametrize(("volume", "shown"), [((), ["one"]), (("-v",), ["one", "two"]), (("-q",), [])])
def test_a_measurement_shows_one_line_every_line_or_none(cli, monkeypatch, volume, shown):
    def run(*arguments):
        say = arguments[-1]
        say("one")
        say("two")
        return REPORT

    monkeypatch.setattr(latency, "run", run)
    outcome = cli("bench", "latency", *volume)
    assert (outcome.out, outcome.err.splitlines()) == (REPORT.as_markdown(), shown)


def test_a_report_goes_to_standard_output_and_to_the_file(cli, asked, tmp_path):
    file = tmp_path / "new.json"
    outcome = cli("bench", "latency", "--json", str(file))
    assert outcome.out == REPORT.as_markdown()
    assert json.loads(file.read_text())["tables"] == {"speed": [{"shape": "1x128", "tok/s": 5.0}]}
    assert "(+25.0 %)" in compared(cli, file)


FIGURES = [Table("speed", ("shape", "tok/s", "of limit %"), [("1x128", 5.0, 101.0), ("2x128", 9, None)])]
MEASURED = Report("jaxinfer bench latency", [("commit", "abc")], [*FIGURES, Table("none", ("a", "b"), [])], ["A note."])


def test_two_saved_reports_are_compared_as_one_with_what_is_measured_now(cli, monkeypatch, tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    faster = [Table("speed", ("shape", "tok/s", "of limit %"), [("1x128", 6.0, 90.0), ("3x128", 1, 2.0)])]
    report = dataclasses.replace(MEASURED, tables=faster, details=[("weights", "1 GiB")])
    for file, one in ((old, MEASURED), (new, report)):
        monkeypatch.setattr(latency, "run", lambda *_, one=one: one)
        assert cli("bench", "latency", "--json", str(file)).code == 0
    measured = cli("bench", "latency", "--compare", str(old)).out
    monkeypatch.delattr(latency, "run")
    assert cli("bench", "show", str(new), "--compare", str(old)).out == measured
    assert "(+20.0 %)" in measured and "the difference to abc" in measured
    shown = cli("bench", "show", str(old), "--json", str(tmp_path / "again.json"))
    assert shown.out == MEASURED.as_markdown().replace("### none\n\n| a | b |\n| --- | --- |\n\n", "")
    assert (tmp_path / "again.json").read_text() == old.read_text().replace(',\n  "none": []', "")


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"tables": []}', '{"tables": {"a": 1}}', '{"tables": {"a": [[1]]}}', '{"facts": 1, "tables": {}}'],
)
@pytest.mark.parametrize("place", ["FILE", "--compare"])
def test_a_file_that_is_no_report_is_refused(cli, tmp_path, text, place):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(MEASURED.as_json())
    bad.write_text(text)
    outcome = cli("bench", "show", *map(str, (bad, "--compare", good) if place == "FILE" else (good, "--compare", bad)))
    assert (outcome.code, f"error: {place} must name a file that --json wrote, " in outcome.err) == (2, True), outcome


def test_reports_of_two_verbs_are_not_compared(cli, tmp_path):
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    new.write_text(MEASURED.as_json())
    old.write_text(REPORT.as_json())
    assert cli("bench", "show", str(new), "--compare", str(old)).last_line == (
        f"error: --compare must name a report of `jaxinfer bench latency`, as {new} is, got one of `bench`; "
        "name two of one verb"
    )


def compared(cli, file) -> str:
    old = json.loads(file.read_text())
    old["tables"]["speed"][0]["tok/s"] = 4.0
    file.write_text(json.dumps(old))
    return cli("bench", "latency", "--compare", str(file)).out


@pytest.mark.parametrize(
    ("arguments", "last_line"),
    [
        (["latncy"], "error: unknown command 'latncy', did you mean 'latency'?"),
        (["latency", "--shapes", "4"], "--shapes must be BATCHxPROMPT of integers of at least 1, or several with "),
        (["latency", "--batch-sizes", "0"], "--batch-sizes must be integers of at least 1 with commas between them, "),
        (
            ["throughput", "--loads", "4:0:1"],
            "--loads must be REQUESTS:IN:OUT of integers of at least 1, or several with ",
        ),
        (["latency", "--compare", "/no/such"], "file not found: /no/such (--compare)"),
        (["latency", "--json", "/no/such/file"], "folder not found: /no/such; name another file"),
        (
            ["serve", "--json", "/proc/x"],
            "cannot write /proc/x (--json): its folder takes no new files; name another file",
        ),
        (["serve", "--stop", ""], "--stop must be texts that are not empty, got ''; leave that one out"),
        (["serve", "--url", "localhost:80"], "--url must begin with http:// or https://, then name a host"),
        (["serve", "--url", "http://h:80o0"], "and perhaps a port, got 'http://h:80o0'"),
        (["compare", "--a", "", "--b", "http://:80"], "--b must begin with http:// or https://, then name a host"),
        (["serve", "--api-key-env", "NO_SUCH_KEY"], "--api-key-env must name a variable that holds a key, NO_SUCH_KEY"),
        (["serve", "--shared-prefix-tokens", "512"], "--shared-prefix-tokens must be less than --input-tokens"),
        (["suite", "emacs"], "must be one of zedinfer, paladin, mini-infer, vllm, toggles, got 'emacs'"),
        (["suite", "vllm", "--html", "/tmp"], "cannot write /tmp (--html): Is a directory; name another file"),
        (["compare", "--a", "run_ahead=0"], "missing option '--b'"),
        (["compare", "--a", "run_ahead=0", "--b", "fast"], "a side must be a URL or name=value,name=value, got 'fast'"),
        (["compare", "--a", "", "--b", "", "--prompts", "/no/such"], "file not found: /no/such (--prompts)"),
        (
            ["compare", "--a", "http://h:1", "--b", "http://h:2", "--max-num-seqs", "4"],
            "settings must be of a server that is started here, got two that run already and --max-num-seqs; drop them",
        ),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(cli, asked, arguments, last_line):
    outcome = cli("bench", *arguments)
    assert outcome.code == 2
    assert last_line in outcome.last_line
    assert asked == []


def test_a_load_is_what_the_options_say(cli, asked, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    flags = ["--rate", "3", "--requests", "9", "--shared-prefix-tokens", "10", "--itl-limit-ms", "20", "--seed", "4"]
    outcome = cli("bench", "serve", "--url", "http://host:1/v1/", *flags, "--check-client", "--api-key-env", "MY_KEY")
    load, processes, warm_up, goals, check_client, _ = asked[0]
    assert outcome.code == 0
    assert (load.url, load.key, load.rate, load.requests, load.shared_tokens) == ("http://host:1", "secret", 3, 9, 10)
    assert (load.seed, load.concurrency, processes, warm_up, goals.itl_ms, check_client) == (4, 0, 4, 2, 20, True)
    assert "secret" not in outcome.out + outcome.err
