"""`jaxinfer run`: the answer alone on standard output."""

import os

import pytest

from jaxinfer.cli import main
from jaxinfer.cli.run import full_prompt, names_a_model, piped_text
from jaxinfer.errors import ConfigError
from jaxinfer.llm.about import DEMO_NOTE, HEADLESS_NOTE
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.logprobs import TokenLogprob
from jaxinfer.version import __version__


def test_the_answer_is_all_of_standard_output(cli, model):
    outcome = cli("run", "hi")
    assert (outcome.code, outcome.out) == (0, "Hello\n")
    assert model.llm.calls[0].prompt == "user:hi\nassistant:"
    assert model.llm.calls[0].chat
    assert model.closed == 1


def test_verbose_shows_progress_and_plan_on_standard_error(cli, model):
    lines = cli("run", "-v", "hi", "--max-num-seqs", "3").err.splitlines()
    assert lines[1].split() == ["max_num_seqs", "3", "(--max-num-seqs)"]
    assert "resolve  reading the settings of tiny" in lines
    assert "         KV pages  512 of 16 tokens" in lines
    assert "load     1.00 of 1.00 GB in 0.5 s, 2.00 GB/s" in lines
    assert any(line.startswith("compile  2 of 2 in ") and line.endswith(", 1 from the cache") for line in lines)
    assert "ready    in 3.2 s" in lines


def cut_short(prompt_ids, params):
    """A script whose answer is as long as it may be."""
    entries = [TokenLogprob(token_id, b"", None, None) for token_id in prompt_ids]
    yield Delta(0, "Hello", [1], "length", prompt_logprobs=entries)


AFTER = ("(", "done", "speed", "output")  # what is said once the start is over
STARTING = {
    "run": ["run", "demo", "hi"],
    "run without a model": ["run", "hi"],
    "chat": ["chat", "demo"],
    "batch": ["batch", "demo", "rows.jsonl", "-o", "-"],
    "ppl": ["ppl", "-m", "demo", "text.txt"],
}


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """Files of a verb's words, where it runs."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "hi"}\n')
    (tmp_path / "text.txt").write_text("x")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("verb", STARTING)
def test_a_start_is_one_line_that_says_what_the_model_is(cli, model, rows, verb):
    model.info, model.script = {"note": DEMO_NOTE}, cut_short
    outcome = cli(*STARTING[verb], stdin="")
    unnamed = " (no MODEL was named, 'hi' is the prompt)" if verb == "run without a model" else ""
    first = f"jaxinfer {__version__}: demo, the bundled demo model, no useful assistant{unnamed}"
    said = [line for line in outcome.err.splitlines() if not line.startswith(AFTER)]
    assert (outcome.code, said) == (0, [first])


@pytest.mark.parametrize("verb", STARTING)
def test_a_quiet_verb_shows_nothing_but_its_answers(cli, model, rows, verb):
    model.info, model.script = {"note": HEADLESS_NOTE}, cut_short
    outcome = cli(*STARTING[verb], "-q", "--trust-remote-code=false", stdin="hi\nhi\n" if verb == "chat" else "")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out
    assert "changes nothing" in cli(*STARTING[verb], "--trust-remote-code=false", stdin="").err


@pytest.mark.parametrize("volume", [(), ("-v",), ("-q",)])
def test_what_a_model_cannot_do_stays_in_view_unless_quiet(cli, model, volume):
    model.info = {"note": HEADLESS_NOTE}
    shown = cli("run", "org/x", "hi", *volume).err.splitlines()
    assert (f"note     {HEADLESS_NOTE}" in shown) == (volume != ("-q",))


def test_the_demo_s_note_is_shown_with_every_step(cli, model):
    model.info = {"note": DEMO_NOTE}
    assert f"note     {DEMO_NOTE}" in cli("run", "hi", "-v").err.splitlines()


def test_verbose_and_quiet_exclude_each_other(cli, model):
    assert "there must be one of --verbose and --quiet" in cli("run", "hi", "-v", "-q").last_line
    assert not model.made


def test_what_is_piped_in_follows_the_prompt(cli, model):
    cli("run", "sum up", stdin="a long text\n")
    assert model.llm.calls[0].prompt == "user:sum up\n\na long text\nassistant:"
    cli("run", stdin="only this\n")
    assert model.llm.calls[0].prompt == "user:only this\nassistant:"


def test_no_prompt_at_all_is_an_error_before_anything_starts(cli, model):
    outcome = cli("run")
    assert outcome.code == 2
    assert outcome.last_line.startswith("error: run needs a prompt, got none; ")
    assert not model.made


def test_sampling_options_reach_the_request(cli, model):
    cli("run", "hi", "--max-tokens", "7", "--temperature", "0.5", "--top-p", "0.9", "--top-k", "5", "--min-p", "0.1")
    params = model.llm.calls[0].params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.min_p) == (7, 0.5, 0.9, 5, 0.1)
    assert (params.seed, params.stop) == (None, None)
    cli("run", "hi", "--seed", "11", "--stop", "\n", "--stop", "END")
    params = model.llm.calls[0].params
    assert (params.seed, params.stop) == (11, ["\n", "END"])


def test_system_message_and_thinking_reach_the_template(cli, model):
    cli("run", "hi", "--system", "be brief", "--no-think")
    assert model.llm.rendered[0]["messages"][0] == {"role": "system", "content": "be brief"}
    assert model.llm.rendered[0]["kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(("arguments", "info"), [(["--raw"], {}), ([], {"has_chat_template": False})])
def test_a_raw_prompt_is_completed_as_it_is(cli, model, arguments, info):
    model.info = info
    assert cli("run", "once upon", *arguments).out == "Hello\n"
    assert model.llm.rendered == []
    assert not model.llm.calls[0].chat


def test_an_answer_cut_by_its_length_says_so(cli, model):
    model.script = lambda ids, params: [Delta(0, "Hel", [1, 2]), Delta(0, "lo", [3], "length")]
    assert cli("run", "hi").last_line == "(stopped at 3 tokens; --max-tokens sets how many it may have)"


def test_stats_are_shown_when_asked_for(cli, model):
    assert "(18 prompt tokens, 9 cached; 5 tokens, first after " in cli("run", "hi", "--stats").last_line


def test_a_refused_request_ends_in_its_cause(cli, model):
    outcome = cli("run", "x" * 600)
    assert outcome.code == 2
    assert outcome.last_line.startswith("error: This model's maximum context length is 512")
    assert outcome.out == ""


def test_an_answer_that_failed_is_an_error(cli, model):
    model.script = lambda ids, params: [Delta(0, "Hel", [1]), Delta(0, "", [], "error", error="NaN in the logits")]
    outcome = cli("run", "hi")
    assert outcome.code == 5
    assert "NaN in the logits" in outcome.last_line


def test_ctrl_c_during_an_answer_frees_it(cli, model):
    def interrupted(ids, params):
        yield Delta(0, "Hel", [1])
        raise KeyboardInterrupt

    model.script = interrupted
    outcome = cli("run", "hi")
    assert outcome.code == 130
    assert model.llm.aborts == ["cli"]
    assert model.closed == 1


def test_a_pipe_is_read_and_a_socket_is_not():
    read, write = os.pipe()
    os.write(write, b"text")
    os.close(write)
    with os.fdopen(read) as stream:
        assert piped_text(stream) == "text"
    with open("/dev/null") as stream:
        assert piped_text(stream) == ""


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_what_is_piped_in_and_no_text_is_refused_before_anything_starts(tmp_path, errors):
    (tmp_path / "latin1.txt").write_bytes("für".encode("latin-1"))
    refused = pytest.raises(ConfigError, match="what is piped in must be text in utf-8")
    with open(tmp_path / "latin1.txt", encoding="utf-8", errors=errors) as stream, refused:
        piped_text(stream)


def test_the_prompt_may_come_from_both_sides():
    assert full_prompt("a", "b\n") == "a\n\nb"
    assert full_prompt("a", "") == "a"
    assert full_prompt(None, "b") == "b"
    with pytest.raises(ConfigError, match="got none"):
        full_prompt("", "\n")


@pytest.mark.parametrize(
    ("arguments", "model_name", "prompt"),
    [
        (["demo", "hi"], "demo", "hi"),
        (["hi"], "demo", "hi"),
        (["org/tiny-1B", "hi"], "org/tiny-1B", "hi"),
        (["hi", "-m", "org/tiny-1B"], "org/tiny-1B", "hi"),
        (["demo", "-m", "org/tiny-1B"], "org/tiny-1B", "demo"),
    ],
)
def test_the_model_comes_first_and_one_word_alone_is_a_prompt(cli, model, arguments, model_name, prompt):
    outcome = cli("run", *arguments)
    assert (outcome.code, model.configs[0].model) == (0, model_name), outcome.err
    assert model.llm.calls[0].prompt == f"user:{prompt}\nassistant:"
    said = "demo, the bundled demo model, no useful assistant (no MODEL was named, 'hi' is the prompt)" in outcome.err
    assert said == (arguments == ["hi"])


def test_a_model_alone_takes_the_prompt_from_a_pipe(cli, model):
    cli("run", "org/tiny-1B", stdin="hi\n")
    assert model.configs[0].model == "org/tiny-1B"
    assert model.llm.calls[0].prompt == "user:hi\nassistant:"


def test_without_a_prompt_a_terminal_gets_a_chat(cli, model, monkeypatch):
    typed = iter(["hi", "/exit"])
    monkeypatch.setattr("builtins.input", lambda shown: next(typed))
    read, write = os.openpty()
    with os.fdopen(write) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        with pytest.raises(SystemExit) as end:
            main(["run", "org/tiny-1B"])
    os.close(read)
    assert (end.value.code, [call.prompt for call in model.llm.calls]) == (0, ["user:hi\nassistant:"])


def test_ctrl_d_ends_a_chat_on_a_line_of_its_own_and_the_hint_names_it(monkeypatch, model, capsys):
    def end_of_input(shown: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", end_of_input)
    read, write = os.openpty()
    with os.fdopen(write) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        with pytest.raises(SystemExit) as end:
            main(["chat"])
    os.close(read)
    hint, after = capsys.readouterr().err.splitlines(keepends=True)[-2:]
    assert (end.value.code, after) == (0, "\n")
    assert "Ctrl-D the chat)" in hint and len(hint) <= 80


@pytest.mark.parametrize(
    "word", ["demo", "org/name", "/no/such", "./here", "~/there", "a.gguf", "https://h.co/a/b", "."]
)
def test_names_of_models_are_told_by_their_form(word):
    assert names_a_model(word)


@pytest.mark.parametrize("word", ["", "hi", "What is 7/5?", "/help me", "and or", "a/b/c"])
def test_what_has_no_form_of_a_name_is_a_prompt(monkeypatch, tmp_path, word):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert not names_a_model(word)


@pytest.mark.parametrize(
    "flag", [["--temperature", "5"], ["--top-p", "-0.1"], ["--max-tokens", "0"], ["--top-k", "-7"], ["--min-p", "2"]]
)
@pytest.mark.parametrize("verb", ["run", "chat", "batch"])
def test_impossible_sampling_is_refused_before_anything_starts(cli, model, tmp_path, verb, flag):
    (tmp_path / "in.jsonl").write_text('{"prompt": "hi"}')
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")] if verb == "batch" else []
    outcome = cli(verb, *files, *flag, stdin="hi")
    assert (outcome.code, model.made) == (2, [])
    assert outcome.last_line.startswith(f"error: {flag[0]} must be ")


@pytest.mark.parametrize("verb", ["run", "chat", "serve", "warmup"])
def test_a_model_that_is_nowhere_is_refused_before_anything_starts(cli, model, verb):
    outcome = cli(verb, "/no/such/model", stdin="hi")
    assert (outcome.code, model.made, len(outcome.err.splitlines())) == (3, [], 1)


def test_a_prompt_before_the_model_is_told_the_order(cli, model):
    outcome = cli("run", "What is 7 plus 5?", "demo")
    said = "MODEL must stand before PROMPT, got 'demo' behind it; write `jaxinfer run demo 'What is 7 plus 5?'`"
    assert (outcome.code, outcome.last_line, model.made) == (2, f"error: {said}", [])
    assert "write `jaxinfer run demo Hello`" in cli("run", "Hello", "demo").last_line
    assert "must be an existing folder" in cli("run", "/no/such", "hi").last_line
