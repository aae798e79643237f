"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's API: chat's path with another form."""

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.llm.asked import check_effort, check_tools, render_chat, served_model
from jaxinfer.protocol.anthropic import NAMES, read_count_tokens, read_message_request
from jaxinfer.protocol.anthropic_message import Message
from jaxinfer.protocol.carried import speaking_of
from jaxinfer.protocol.chat import switched
from jaxinfer.protocol.responses import encode_json
from jaxinfer.server.body import read_prompt, read_ranked, unread
from jaxinfer.server.completions import answer_chat, open_llm
from jaxinfer.server.stream import EventStream


async def create_message(request: Request) -> Response | EventStream:
    """One conversation in, the assistant's next message out."""
    llm = open_llm(request)
    chat = read_message_request(await read_ranked(request))
    request_id = request.state.request_id
    model = served_model(llm.info, chat.wire.model)
    max_tokens = 0 if chat.prompt_only else chat.sampling.max_tokens or 0
    message = Message(f"msg_{request_id}", model, request_id, max_tokens)
    with speaking_of(NAMES):
        return await answer_chat(request, llm, chat, message)


async def count_tokens(request: Request) -> Response:
    """How many tokens such a conversation has."""
    llm = open_llm(request)
    wanted = read_count_tokens(await read_prompt(request))
    wire, conversation = wanted.wire, wanted.conversation
    served_model(llm.info, wire.model)
    effort = None if wire.thinking is None else wire.thinking.effort
    with speaking_of(NAMES):
        check_tools(llm.info, wanted.tools)
        check_effort(llm.info, effort)
    headers = unread(request, wanted.unknown)
    ids = await render_chat(
        llm,
        conversation.messages,
        add_generation_prompt=not conversation.goes_on,
        continue_final_message=conversation.goes_on,
        tools=None if wanted.tools is None else wanted.tools.shown,
        template_kwargs=switched(wire.chat_template_kwargs, effort),
    )
    return Response(encode_json({"input_tokens": len(ids)}), headers=headers, media_type="application/json")
