"""`jaxinfer chat`: a conversation that remembers, forgets and survives a refusal."""

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


def test_reset_forgets_all_but_the_system_message(cli, model):
    cli("chat", "--system", "be brief", stdin="hi\n/reset\nagain\n")
    assert prompts(model)[1] == "system:be brief\nuser:again\nassistant:"


def test_an_unknown_command_is_not_sent_to_the_model(cli, model):
    outcome = cli("chat", stdin="/rest\n\n/help\n")
    assert "error: unknown command '/rest', did you mean '/reset'?" in outcome.err
    assert outcome.last_line.startswith("(/exit end; /reset")
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
