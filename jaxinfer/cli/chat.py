"""`jaxinfer chat`: a conversation in the terminal."""

from collections.abc import Mapping
from typing import Any

from jaxinfer.cli.conversation import Conversation, talk_at_terminal
from jaxinfer.cli.options import EngineCommand
from jaxinfer.cli.session import ANSWER_OPTIONS, first_messages, sampling_params, template_kwargs
from jaxinfer.cli.talker import SERVER_OPTIONS, talker
from jaxinfer.config import Resolved
from jaxinfer.errors import ConfigError


def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
    """Talk until /exit or the end of the input."""
    sampling = sampling_params(resolved, params)
    with talker(resolved, params) as talks:
        if not talks.has_chat_template:
            fact = f"{talks.name} has none"
            cure = "use `jaxinfer run --raw`, --chat-template or --tokenizer"
            raise ConfigError(f"chat needs a model with a chat template, {fact}; {cure}")
        first, kwargs = first_messages(params), template_kwargs(params)
        talk_at_terminal(Conversation(talks, sampling, first, kwargs, is_quiet=params["quiet"]))
    return 0


command = EngineCommand(
    "chat",
    run,
    [*ANSWER_OPTIONS, *SERVER_OPTIONS],
    help="Talk to MODEL, by default the bundled demo. If a server of yours has MODEL, this server answers. Otherwise "
    "the model is loaded here.",
)
