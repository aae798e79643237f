"""`jaxinfer chat`: a conversation that remembers, forgets and survives a refusal."""

import json

import pytest

from jaxinfer.llm.types import Delta


def prompts(model):
    return [call.prompt for call in model.llm.calls]


def test_a_conversation_keeps_its_turns(cli, model):
    outcome = cli("chat", stdin="hi\nagain\n")
    assert (outcome.code, outcome.out) == (0, "Hello\nHello\n")
    assert prompts(model)[1] == "user:hi\nassistant:Hello\nuser:again\nassistant:"
    assert model.closed == 1


def test_every_answer_has_its_stats_line(cli, model):
    assert cli("chat", stdin="hi\n").last_line.startswith("(18 prompt tokens, 9 cached; 5 tokens, first after ")


def test_exit_ends_it(cli, model):
    assert cli("chat", stdin="/exit\nhi\n").out == ""


@pytest.mark.parametrize("word", ["exit", "quit", "bye", "Exit", "exit()", ":q"])
def test_a_word_that_leaves_other_programs_leaves_a_chat_at_a_terminal(cli, model, monkeypatch, word):
    """Piped in it is a message, as any other."""
    assert cli("chat", stdin=f"{word}\nhi\n").out == "Hello\nHello\n"
    texts = iter([f"what is {word}?", word, "never"])
    monkeypatch.setattr("jaxinfer.cli.conversation.read_text", lambda: next(texts))
    monkeypatch.setattr("jaxinfer.cli.conversation.at_terminal", lambda: True)
    assert (cli("chat").code, prompts(model)) == (0, [f"user:what is {word}?\nassistant:"])


def test_reset_forgets_all_but_the_system_message(cli, model):
    cli("chat", "--system", "be brief", stdin="hi\n/reset\nagain\n")
    assert prompts(model)[1] == "system:be brief\nuser:again\nassistant:"


def test_an_unknown_command_is_not_sent_to_the_model(cli, model):
    outcome = cli("chat", stdin="/rest\n\n/help\n")
    assert "error: unknown command '/rest', did you mean '/reset'?" in outcome.err
    assert outcome.last_line.split() == ["/exit", "end;", "exit,", "quit", "and", "Ctrl-D", "too"]
    assert prompts(model) == []


def test_a_refused_turn_is_shown_and_forgotten(cli, model):
    outcome = cli("chat", stdin=f"hi\n{'x' * 600}\nagain\n")
    assert outcome.code == 0
    assert "error: This model's maximum context length is 512" in outcome.err
    assert prompts(model)[-1] == "user:hi\nassistant:Hello\nuser:again\nassistant:"


def test_ctrl_c_stops_the_answer_and_not_the_chat(cli, model):
    interrupts = [True, False]

    def script(ids, params):
        yield Delta(0, "Hel", [1])
        if interrupts.pop(0):
            raise KeyboardInterrupt
        yield Delta(0, "lo", [2], "stop")

    model.script = script
    outcome = cli("chat", stdin="hi\nagain\n")
    assert outcome.code == 0
    assert "(stopped; this turn is forgotten)" in outcome.err
    assert outcome.out.endswith("Hello\n")
    assert prompts(model)[-1] == "user:again\nassistant:"
    assert model.llm.aborts == ["cli"]


def test_a_model_without_a_chat_template_is_refused(cli, model):
    model.info = {"has_chat_template": False}
    outcome = cli("chat", stdin="hi\n")
    assert outcome.code == 2
    assert "chat needs a model with a chat template, org/tiny-1B has none" in outcome.last_line


def test_a_text_between_fences_has_several_lines(cli, model):
    cli("chat", stdin='"""\none\n  two\n"""\nthree\n"""four"""\n')
    asked = [prompt.rpartition("user:")[2].removesuffix("\nassistant:") for prompt in prompts(model)]
    assert asked == ["one\n  two", "three", "four"]


def test_set_changes_the_sampling_of_what_follows(cli, model):
    cli(
        "chat",
        "--temperature",
        "1",
        stdin="/set temperature 0.5\n/set max-tokens 7\nhi\n/set temperature default\nhi\n",
    )
    first, second = (call.params for call in model.llm.calls)
    assert (first.temperature, first.max_tokens) == (0.5, 7)
    assert (second.temperature, second.max_tokens) == (None, 7)


@pytest.mark.parametrize(
    "line", ["/set temperature 5", "/set top_p x", "/set temprature 1", "/set seed", "/load", "/save"]
)
def test_a_mistaken_command_is_shown_and_changes_nothing(cli, model, line):
    outcome = cli("chat", "--temperature", "1", stdin=f"{line}\nhi\n")
    assert "error: " in outcome.err
    assert model.llm.calls[0].params.temperature == 1


def test_system_begins_a_new_conversation(cli, model):
    cli("chat", stdin="hi\n/system be brief\nagain\n/system\nonce\n")
    assert prompts(model)[1:] == ["system:be brief\nuser:again\nassistant:", "user:once\nassistant:"]


def test_a_saved_conversation_goes_on_where_it_was(cli, model, tmp_path):
    file = tmp_path / "talk.json"
    cli("chat", "--system", "be brief", "--temperature", "0.5", stdin=f"hi\n/save {file}\n/save {file}\n")
    cli("chat", stdin=f"/load {file}\nagain\n/reset\nonce\n")
    assert prompts(model)[0] == "system:be brief\nuser:hi\nassistant:Hello\nuser:again\nassistant:"
    assert prompts(model)[1] == "system:be brief\nuser:once\nassistant:"
    assert model.llm.calls[0].params.temperature == 0.5


def test_a_saved_conversation_of_another_chat_is_replaced_only_when_that_is_asked(cli, model, tmp_path):
    file, other = tmp_path / "talk.json", tmp_path / "other.json"
    cli("chat", stdin=f"hi\n/save {file}\n/save {other}\n")
    before = file.read_text()
    outcome = cli("chat", stdin=f"/save {file}\n/load {other}\n/save {file}\n/reset\n/save {other}\n")
    assert outcome.err.count(f"error: {file} has another conversation; name another file, or `/save --overw") == 2
    assert f"error: {other} has another conversation" in outcome.err, "what is begun after /reset is another one"
    assert file.read_text() == before == other.read_text()
    cli("chat", stdin=f"/save --overwrite {file}\n")
    assert json.loads(file.read_text())["messages"] == []


SOUND = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "settings": {}}


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[]",
        "null",
        json.dumps(SOUND)[:-5],
        json.dumps(SOUND | {"settings": {"temperature": 9}}),
        json.dumps(SOUND | {"settings": {"temperature": "hot"}}),
        json.dumps(SOUND | {"settings": {"model": "x"}}),
        json.dumps(SOUND | {"messages": SOUND["messages"][:1]}),
        json.dumps(SOUND | {"messages": [{"role": "user", "content": 3}, SOUND["messages"][1]]}),
        json.dumps(SOUND | {"messages": [3, 4]}),
    ],
)
def test_a_damaged_file_changes_nothing(cli, model, tmp_path, damage):
    file = tmp_path / "talk.json"
    file.write_text(damage)
    outcome = cli("chat", "--temperature", "1", stdin=f"hi\n/load {file}\n/save {file}\nagain\n")
    assert outcome.err.count("error: ") == 2, outcome.err
    assert prompts(model)[-1] == "user:hi\nassistant:Hello\nuser:again\nassistant:"
    assert model.llm.calls[-1].params.temperature == 1
    assert file.read_text() == damage


@pytest.mark.parametrize(
    ("saved", "fault"),
    [
        ([1, 2], "Expected `object`, got `array`"),
        ({"messages": []}, "missing required field `settings`"),
        (SOUND | {"messages": [{"role": "usr", "content": "x"}]}, "Invalid enum value 'usr' - at `$.messages[0].role`"),
        (SOUND | {"messages": SOUND["messages"][1:]}, "not of user and assistant in turns"),
        (SOUND | {"settings": {"temprature": 1}}, "did you mean 'temperature'?"),
        (SOUND | {"settings": {"temperature": 9}}, "temperature"),
    ],
)
def test_a_damaged_file_is_told_what_is_wrong_with_it(cli, model, tmp_path, saved, fault):
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(saved))
    assert fault in cli("chat", stdin=f"/load {file}\n").err


def test_ctrl_c_at_the_prompt_drops_the_line_and_the_second_in_a_row_ends(cli, model, monkeypatch):
    texts = iter([KeyboardInterrupt, "hi", KeyboardInterrupt, KeyboardInterrupt, "never"])

    def read_text() -> str:
        if (text := next(texts)) is KeyboardInterrupt:
            raise KeyboardInterrupt
        return text

    monkeypatch.setattr("jaxinfer.cli.conversation.read_text", read_text)
    monkeypatch.setattr("jaxinfer.cli.conversation.at_terminal", lambda: True)
    outcome = cli("chat")
    assert prompts(model) == ["user:hi\nassistant:"]
    assert outcome.code == 130 and outcome.err.count("Ctrl-C once more") == 2


def test_a_full_context_names_the_way_out_once_there_is_something_to_forget(cli, model):
    long = "x" * 600
    first, second = (line for line in cli("chat", stdin=f"{long}\nhi\n{long}\n").err.splitlines() if "error" in line)
    assert "/reset" not in first and second.endswith("; /reset forgets the conversation")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "/set max_tokens 1.5",
            "max_tokens must be an integer or default, got '1.5'; `/set max_tokens default` restores",
        ),
        ("/set temperature x", "temperature must be a number or default, got 'x'; `/set temperature default` restores"),
        *(
            (f"/set {name} {value}", f"{name} must be {law}, got {value}; `/set {name} default` restores its default\n")
            for name, law, value in (
                ("temperature", "a number from 0 (greedy) to 2", "9.0"),
                ("top_p", "a number from 0 (the likeliest token alone) to 1 (off)", "2.0"),
                ("max_tokens", "an integer of at least 1 and below 2^63", "0"),
            )
        ),
        ("/load /nosuch", "file not found: /nosuch; name one that is there"),
        ("/load /dev/zero", "/dev/zero must be a regular file, it is a device; name a file"),
        ("/save /tmp", "/tmp must be a regular file, it is a folder; name a file"),
    ],
)
def test_a_mistake_is_told_with_its_cure(cli, model, line, said):
    assert f"error: {said}" in cli("chat", stdin=f"{line}\n").err


@pytest.mark.parametrize(
    ("typed", "stop"), [("12", "12"), ('"12"', "12"), (r'"a \n"', "a \n"), ('"12', '"12'), ('"a" b', '"a" b')]
)
def test_a_stop_text_may_stand_in_quotes(cli, model, typed, stop):
    cli("chat", stdin=f"/set stop {typed}\nhi\n")
    assert model.llm.calls[0].params.stop == [stop]
