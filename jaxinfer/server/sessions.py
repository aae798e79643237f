"""Sessions: conversations whose pages stay cached, and the routes that list, show and delete them.

A session is a tenant's id for a conversation. Each turn is an ordinary request; when its answer has ended well, the
engine keeps the pages of prompt and answer in the session's name until the next turn's take their place. What the next
prompt has in common with them, token by token from the start, is not computed again, whatever was edited behind it.
Where pages are short, a session's go to host memory and come back; where that is full too, or an engine was replaced,
they are gone and computed again: no answer depends on them.
"""

import asyncio
import dataclasses
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.config import counted
from jaxinfer.errors import Conflict, InvalidRequest, NotFound, Overloaded
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.chat import ChatRequest
from jaxinfer.protocol.responses import encode_json, shown_call
from jaxinfer.text.tools.reader import WholeCalls

Messages = list[dict[str, Any]]
MAX_SESSION_TEXT_MIB = 64  # of all tenants' conversations together
RECORDED = ("stop", "length", "tool_calls")  # how an answer ends that becomes part of its session


@dataclasses.dataclass(slots=True, eq=False)
class Session:
    """A conversation. key: its name in the engine, never used again.    turns, tokens: recorded, and how long it is.

    history: all its messages as JSON, which a turn may be appended to; None when its last turn was no chat, or the text
    of later ones has taken its room.
    turn: under way.    last_used_s: by time.monotonic().    expiry: set while it is idle.
    """

    id: str
    tenant: str
    key: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))
    turns: int = 0
    tokens: int = 0
    history: bytes | None = None
    turn: "SessionTurn | None" = None
    last_used_s: float = dataclasses.field(default_factory=time.monotonic)
    expiry: asyncio.TimerHandle | None = None


class SessionTurn:
    """One request of a session. Invariant: it is recorded whole, at its answer's last delta, or as if never begun."""

    def __init__(self, sessions: "Sessions", session: Session) -> None:
        self._messages: Messages | None = None  # that the answer follows, if it is a message of its own
        self._sessions = sessions
        self._session = session
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls = WholeCalls()
        self._token_ids: list[int] = []

    def conversation(self, chat: ChatRequest) -> Messages:
        """All of it: what was sent, or the session's history and that. Raises NotFound or InvalidRequest."""
        whole = self._history() + chat.messages if chat.wire.session_append else chat.messages
        self._messages = whole if chat.add_generation_prompt and chat.wire.session_history else None
        return whole

    def _history(self) -> Messages:
        session = self._session
        if not session.turns:
            raise _not_found(session.id)
        if session.history is None:
            raise InvalidRequest(
                "session_append must follow a turn of whole messages whose text is still kept, the last one was a "
                f"completion, was continued, had session_history false, or what all sessions keep was more than "
                f"{MAX_SESSION_TEXT_MIB} MiB; send the whole conversation",
                param="session_append",
                code="invalid_value",
            )
        history: Messages = msgspec.json.decode(session.history)
        return history

    def add(self, delta: Delta, prompt: Sequence[int], salt: str) -> None:
        """The answer's next piece; the last one ends the turn."""
        self._text.append(self._calls.add(delta.calls, delta.text) if delta.calls else delta.text)
        self._thoughts.append(delta.reasoning)
        self._token_ids += delta.token_ids
        if delta.finish_reason in RECORDED:
            answer = [self._message()] if self._token_ids else []  # none is wanted where max_tokens is 0
            history = None if self._messages is None else encode_json([*self._messages, *answer])
            self._sessions.record(self._session, history, [*prompt, *self._token_ids], salt)
        if delta.finish_reason is not None:
            self.end()

    def _message(self) -> dict[str, Any]:
        """The answer, as a client would send it back."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text)}
        if any(self._thoughts):
            message["reasoning_content"] = "".join(self._thoughts)
        if calls := self._calls.calls:
            message["tool_calls"] = [shown_call(call) for call in calls]
        return message

    def end(self) -> None:
        """The session is idle again; nothing to do if it is, or has another turn."""
        if self._session.turn is self:
            self._sessions.end(self._session)


class Sessions:
    """The sessions of all tenants; belongs to one event loop.

    Invariants: a session has one turn at most; one without a recorded turn is there only while its first is under way;
    of a tenant's at most `most` are busy, and at most `most` are recorded, a further one taking the place of the one
    idle for longest; none is idle for longer than `max_idle_s`. Their text is MAX_SESSION_TEXT_MIB at most: beyond, the
    tenant who has most gives up the one used least recently, and sends that conversation whole again.
    """

    def __init__(self, llm: AsyncLLM, most: int, max_idle_s: float) -> None:
        self._llm = llm
        self._most = most
        self._max_idle_s = max_idle_s
        self._by_tenant: dict[str, OrderedDict[str, Session]] = {}  # those idle for longest first
        self._text_bytes: Counter[str] = Counter()  # of histories, by tenant

    def begin(self, tenant: str, session_id: str) -> SessionTurn:
        """Begin a turn of a session, which is a new one if nothing is known of it. Raises Conflict or Overloaded."""
        session = self._own(tenant).get(session_id) or Session(session_id, tenant)
        if session.turn is not None:
            raise Conflict(
                f"a session must have one turn at a time, {session_id} has one under way; wait for its end",
                code="session_busy",
            )
        num_busy = sum(other.turn is not None for other in self._own(tenant).values())
        if num_busy == self._most:
            raise Overloaded(
                f"at most {counted(self._most, 'session')} may be there (--max-sessions-per-key), as many of yours are "
                "busy; try again when a turn has ended",
                code="too_many_sessions",
            )
        if session.expiry is not None:
            session.expiry.cancel()
        session.turn = SessionTurn(self, session)
        own = self._by_tenant.setdefault(tenant, OrderedDict())
        own[session_id] = session
        own.move_to_end(session_id)
        return session.turn

    def record(self, session: Session, history: bytes | None, tokens: list[int], salt: str) -> None:
        """A turn has ended well. Of a session that was deleted meanwhile nothing is recorded."""
        if self._is_there(session):
            session.turns += 1
            session.tokens = len(tokens)
            self._hold(session, history)
            self._llm.keep(session.key, salt, tokens)
            own = self._own(session.tenant)
            idle = [other for other in own.values() if other.turn is None]
            for other in idle[: max(0, len(own) - self._most)]:
                self._let_go(other)

    def end(self, session: Session) -> None:
        """The turn under way is over."""
        session.turn = None
        session.last_used_s = time.monotonic()
        if not self._is_there(session):
            return
        self._by_tenant[session.tenant].move_to_end(session.id)
        if session.turns:
            loop = asyncio.get_running_loop()
            session.expiry = loop.call_later(self._max_idle_s, self._let_go, session)
        else:
            self._remove(session)

    def of(self, tenant: str) -> list[Session]:
        """A tenant's, those used last first."""
        return list(reversed(self._own(tenant).values()))

    def find(self, tenant: str, session_id: str) -> Session:
        """Raises NotFound, as for another tenant's."""
        session = self._own(tenant).get(session_id)
        if session is None:
            raise _not_found(session_id)
        return session

    def delete(self, session: Session) -> None:
        """Free its pages now. A turn under way goes on, and is not recorded."""
        self._remove(session)
        self._llm.forget(session.key)

    def counts(self) -> dict[str, int]:
        """By state, of all tenants."""
        busy = [session.turn is not None for own in self._by_tenant.values() for session in own.values()]
        return {"busy": sum(busy), "idle": len(busy) - sum(busy)}

    def _hold(self, session: Session, history: bytes | None) -> None:
        """Keep a session's text, or none, as long as there is room."""
        self._put_text(session, history)
        while self._text_bytes.total() > MAX_SESSION_TEXT_MIB * 2**20:
            ((tenant, _),) = self._text_bytes.most_common(1)
            self._put_text(next(each for each in self._own(tenant).values() if each.history), None)

    def _put_text(self, session: Session, history: bytes | None) -> None:
        self._text_bytes[session.tenant] += len(history or b"") - len(session.history or b"")
        session.history = history
        if not self._text_bytes[session.tenant]:
            del self._text_bytes[session.tenant]

    def _let_go(self, session: Session) -> None:
        """Drop an idle one; its pages stay cached like any other's."""
        self._remove(session)
        self._llm.keep(session.key, "", ())

    def _remove(self, session: Session) -> None:
        if session.expiry is not None:
            session.expiry.cancel()
        self._hold(session, None)
        own = self._by_tenant[session.tenant]
        del own[session.id]
        if not own:
            del self._by_tenant[session.tenant]

    def _own(self, tenant: str) -> OrderedDict[str, Session]:
        return self._by_tenant.get(tenant, OrderedDict())

    def _is_there(self, session: Session) -> bool:
        return self._own(session.tenant).get(session.id) is session


@contextmanager
def beginning(request: Request, session_id: str | None) -> Iterator[SessionTurn | None]:
    """The turn that a request begins, if it belongs to a session; ended at once if what is under this fails."""
    if session_id is None:
        yield None
        return
    turn = request.app.state.sessions.begin(request.state.tenant.name, session_id)
    try:
        yield turn
    except BaseException:
        turn.end()
        raise


async def list_sessions(request: Request) -> Response:
    """The tenant's, those used last first."""
    found = request.app.state.sessions.of(request.state.tenant.name)
    pages = _pages(request)
    return _answer({"object": "list", "data": [_shown(session, *pages) for session in found]})


async def one_session(request: Request) -> Response:
    """Show one of them, or end it; another tenant's is a 404."""
    sessions: Sessions = request.app.state.sessions
    session = sessions.find(request.state.tenant.name, request.path_params["id"])
    if request.method != "DELETE":
        return _answer(_shown(session, *_pages(request)))
    sessions.delete(session)
    return _answer({"id": session.id, "object": "session", "deleted": True})


def _pages(request: Request) -> tuple[dict[str, int], dict[str, int]]:
    """Kept by each session now, by the engine's names of them: in the pool, and in host memory."""
    llm: AsyncLLM = request.app.state.llm
    if llm.status in ("starting", "failed"):
        return {}, {}
    stats = llm.stats()
    return stats.pages_kept_by, stats.host_pages_by


def _shown(session: Session, pages: dict[str, int], host_pages: dict[str, int]) -> dict[str, Any]:
    return {
        "id": session.id,
        "object": "session",
        "created": session.created,
        "status": "idle" if session.turn is None else "busy",
        "turns": session.turns,
        "tokens": session.tokens,
        "pages": pages.get(session.key, 0),
        "host_pages": host_pages.get(session.key, 0),
        "idle_s": 0.0 if session.turn is not None else round(time.monotonic() - session.last_used_s, 3),
    }


def _answer(body: dict[str, Any]) -> Response:
    return Response(encode_json(body), media_type="application/json")


def _not_found(session_id: str) -> NotFound:
    return NotFound(
        f"there is no session {ascii(session_id)[:200]} of yours here, or no more; a whole conversation begins it",
        param="session_id",
        code="session_not_found",
    )
