"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's API: chat's path with another form."""

from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.llm.asked import render_chat, served_model
from jaxinfer.protocol.anthropic import NAMES, read_count_tokens, read_message_request
from jaxinfer.protocol.anthropic_message import Message
from jaxinfer.protocol.carried import speaking_of
from jaxinfer.protocol.chat import switched
from jaxinfer.protocol.responses import encode_json
from jaxinfer.server.body import read_json, unread
from jaxinfer.server.completions import answer_chat, open_llm
from jaxinfer.server.stream import EventStream


async def create_message(request: Request) -> Response | EventStream:
    """One conversation in, the assistant's next message out."""
    llm = open_llm(request)
    chat = read_message_request(await read_json(request, request.app.state.settings.max_body_bytes))
    request_id = request.state.request_id
    message = Message(f"msg_{request_id}", served_model(llm.info, chat.wire.model), request_id)
    with speaking_of(NAMES):
        return await answer_chat(request, llm, chat, message)


async def count_tokens(request: Request) -> Response:
    """How many tokens such a conversation has."""
    llm = open_llm(request)
    wire, conversation = read_count_tokens(await read_json(request, request.app.state.settings.max_body_bytes))
    served_model(llm.info, wire.model)
    headers = unread(request, conversation.unknown)
    ids = await render_chat(
        llm,
        conversation.messages,
        add_generation_prompt=not conversation.goes_on,
        continue_final_message=conversation.goes_on,
        template_kwargs=switched(wire.chat_template_kwargs, None if wire.thinking is None else wire.thinking.effort),
    )
    return Response(encode_json({"input_tokens": len(ids)}), headers=headers, media_type="application/json")
