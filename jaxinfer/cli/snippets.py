"""What a client needs to use one server, ready to paste. No key is ever in it, only the name of its variable."""

import dataclasses
import json
import shlex
from collections.abc import Callable

QUESTION = "What is 7 plus 5?"
LONG_PROMPTS = 32_768  # tokens of context below which a coding agent's own instructions leave little room
AGENT_S_ANSWER = 32_000  # tokens that Claude Code leaves for an answer unless told otherwise
NO_KEY = "none"  # clients insist on one; a server without keys reads none


@dataclasses.dataclass(frozen=True)
class Server:
    """One that answers. base: without /v1.    key_env: the variable that holds its key, "" where it asks for none.

    routes: the paths it says it offers; None where it does not say.    is_jaxinfer: it says that it is one of ours.
    """

    base: str
    model: str
    key_env: str = ""
    routes: frozenset[str] | None = None
    max_model_len: int | None = None
    is_jaxinfer: bool = False

    def offers(self, route: str) -> bool:
        return self.routes is None or route in self.routes

    @property
    def v1(self) -> str:
        return f"{self.base}/v1"

    @property
    def shell_key(self) -> str:
        return f'"${self.key_env}"' if self.key_env else NO_KEY

    @property
    def python_key(self) -> str:
        return f'os.environ["{self.key_env}"]' if self.key_env else f'"{NO_KEY}"'

    def python(self, *lines: str) -> str:
        """A program, which reads the key from its variable."""
        return "\n".join([*(["import os", ""] if self.key_env else []), *lines])


@dataclasses.dataclass(frozen=True)
class ClientSnippet:
    """A client of one route. kind: of file that its settings are, as Markdown names it."""

    title: str
    kind: str
    route: str
    settings: Callable[[Server], str]


def messages() -> str:
    return json.dumps([{"role": "user", "content": QUESTION}])


def curl(server: Server) -> str:
    body = {"model": server.model, "messages": [{"role": "user", "content": QUESTION}], "stream": True}
    key = f' -H "Authorization: Bearer ${server.key_env}"' if server.key_env else ""
    head = f"curl -N {shlex.quote(server.v1 + '/chat/completions')} -H 'Content-Type: application/json'{key}"
    return f"{head} \\\n  -d {shlex.quote(json.dumps(body))}"


def openai_python(server: Server) -> str:
    return server.python(
        "from openai import OpenAI",
        "",
        f"client = OpenAI(base_url={json.dumps(server.v1)}, api_key={server.python_key})",
        f"answer = client.chat.completions.create(model={json.dumps(server.model)}, messages={messages()})",
        "print(answer.choices[0].message.content)",
    )


def openai_node(server: Server) -> str:
    key = f"process.env.{server.key_env}" if server.key_env else json.dumps(NO_KEY)
    return "\n".join(
        (
            'import OpenAI from "openai";',
            "",
            f"const client = new OpenAI({{ baseURL: {json.dumps(server.v1)}, apiKey: {key} }});",
            "const answer = await client.chat.completions.create({",
            f"  model: {json.dumps(server.model)},",
            f"  messages: {messages()},",
            "});",
            "console.log(answer.choices[0].message.content);",
        )
    )


def anthropic_python(server: Server) -> str:
    return server.python(
        "from anthropic import Anthropic",
        "",
        f"client = Anthropic(base_url={json.dumps(server.base)}, api_key={server.python_key})",
        f"answer = client.messages.create(model={json.dumps(server.model)}, max_tokens=64, messages={messages()})",
        "print(answer.content[0].text)",
    )


def langchain(server: Server) -> str:
    return server.python(
        "from langchain_openai import ChatOpenAI",
        "",
        f"model = ChatOpenAI(model={json.dumps(server.model)}, base_url={json.dumps(server.v1)}, "
        f"api_key={server.python_key})",
        f"print(model.invoke({json.dumps(QUESTION)}).content)",
    )


def litellm(server: Server) -> str:
    return server.python(
        "import litellm",
        "",
        f"answer = litellm.completion(model={json.dumps('openai/' + server.model)}, "
        f"api_base={json.dumps(server.v1)}, api_key={server.python_key},",
        f"                            messages={messages()})",
        "print(answer.choices[0].message.content)",
    )


def open_webui(server: Server) -> str:
    return "\n".join(
        (
            f"export OPENAI_API_BASE_URL={shlex.quote(server.v1)}",
            f"export OPENAI_API_KEY={server.shell_key}",
            "open-webui serve",
        )
    )


def claude_code(server: Server) -> str:
    model = shlex.quote(server.model)
    sizes = [f"export ANTHROPIC_DEFAULT_{size}_MODEL={model}" for size in ("OPUS", "SONNET", "HAIKU")]
    lengths = []
    if server.max_model_len is not None:  # the prompt and what is left for the answer must fit together
        room = max(1, min(AGENT_S_ANSWER, server.max_model_len // 4))
        lengths = [f"export CLAUDE_CODE_MAX_OUTPUT_TOKENS={room}"]
        lengths += [f"export CLAUDE_CODE_AUTO_COMPACT_WINDOW={server.max_model_len}"]
    return "\n".join(
        (
            *agent_note(server),
            f"export ANTHROPIC_BASE_URL={shlex.quote(server.base)}",
            f"export ANTHROPIC_AUTH_TOKEN={server.shell_key}",
            f"export ANTHROPIC_MODEL={model}",
            *sizes,
            "# else a line that differs in each conversation comes first, and nothing behind it is found in the cache",
            "export CLAUDE_CODE_ATTRIBUTION_HEADER=0",
            *lengths,
            "claude",
        )
    )


def codex(server: Server) -> str:
    key = [f"env_key = {json.dumps(server.key_env)}"] if server.key_env else []
    length = [] if server.max_model_len is None else [f"model_context_window = {server.max_model_len}"]
    return "\n".join(
        (
            *agent_note(server),
            "# ~/.codex/config.toml",
            f"model = {json.dumps(server.model)}",
            'model_provider = "jaxinfer"',
            'web_search = "disabled"  # the one that Codex means is OpenAI\'s own',
            *length,
            "",
            "[model_providers.jaxinfer]",
            'name = "jaxinfer"',
            f"base_url = {json.dumps(server.v1)}",
            *key,
            'wire_api = "responses"',
        )
    )


def ollama_python(server: Server) -> str:
    key = f', headers={{"Authorization": "Bearer " + {server.python_key}}}' if server.key_env else ""
    return server.python(
        "from ollama import Client",
        "",
        f"client = Client(host={json.dumps(server.base)}{key})",
        f"answer = client.chat(model={json.dumps(server.model)}, messages={messages()})",
        "print(answer.message.content)",
    )


def ollama_clients(server: Server) -> str:
    """Of editors and tools that ask for the address of an Ollama server and look for it at port 11434."""
    key = [f"export OLLAMA_API_KEY={server.shell_key}"] if server.key_env else []
    return "\n".join((f"export OLLAMA_HOST={shlex.quote(server.base)}", *key))


def agent_note(server: Server) -> list[str]:
    """A comment where the context is too short for what coding agents send."""
    length = server.max_model_len
    if length is None or length >= LONG_PROMPTS:
        return []
    return [f"# coding agents send long prompts; this server's max_model_len is {length:,}, and few of theirs will fit"]


CHAT = "/v1/chat/completions"
CLIENTS = {
    "curl": ClientSnippet("curl", "sh", CHAT, curl),
    "openai-python": ClientSnippet("OpenAI's SDK, Python", "python", CHAT, openai_python),
    "openai-node": ClientSnippet("OpenAI's SDK, npm", "js", CHAT, openai_node),
    "anthropic-python": ClientSnippet("Anthropic's SDK, Python", "python", "/v1/messages", anthropic_python),
    "langchain": ClientSnippet("LangChain", "python", CHAT, langchain),
    "litellm": ClientSnippet("LiteLLM", "python", CHAT, litellm),
    "ollama-python": ClientSnippet("Ollama's client, Python", "python", "/api/chat", ollama_python),
    "ollama": ClientSnippet("clients of Ollama's API", "sh", "/api/chat", ollama_clients),
    "open-webui": ClientSnippet("Open WebUI", "sh", CHAT, open_webui),
    "claude-code": ClientSnippet("Claude Code", "sh", "/v1/messages", claude_code),
    "codex": ClientSnippet("Codex", "toml", "/v1/responses", codex),
}
