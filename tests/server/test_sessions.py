"""Sessions on the wire: whose they are, how long they live, what a turn leaves behind, what is refused (A49, A21)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from jaxinfer.llm.types import Delta
from jaxinfer.server import sessions
from jaxinfer.server.app import create_app
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM, hello
from tests.server.http import CHAT, COMPLETIONS, MESSAGES, USER, error_of

SESSIONS = "/v1/sessions"
HELLO = {"role": "assistant", "content": "Hello"}  # what fakes.hello says
MORE = {"role": "user", "content": "more"}
ALICE, BOB = {"authorization": "Bearer sk-alice-0123"}, {"authorization": "Bearer sk-bob-012345"}
LOCKED = ServerSettings(api_keys=(ApiKey("alice", "sk-alice-0123"), ApiKey("bob", "sk-bob-012345")))
Test = Callable[["Client"], Awaitable[None]]


class Client:
    """Asks one app in one event loop."""

    def __init__(self, llm: FakeLLM, http: httpx2.AsyncClient) -> None:
        self.llm, self._http = llm, http

    async def chat(self, session: str = "s", headers: dict[str, str] | None = None, **fields: Any) -> httpx2.Response:
        body = {"messages": USER, "session_id": session, **fields}
        return await self._http.post(CHAT, json=body, headers=headers)

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        return await self._http.post(path, json=body, headers=headers)

    async def get(self, path: str = SESSIONS, headers: dict[str, str] | None = None) -> httpx2.Response:
        return await self._http.get(path, headers=headers)

    async def delete(self, session: str, headers: dict[str, str] | None = None) -> httpx2.Response:
        return await self._http.delete(f"{SESSIONS}/{session}", headers=headers)

    async def ids(self, headers: dict[str, str] | None = None) -> list[str]:
        return [session["id"] for session in (await self.get(headers=headers)).json()["data"]]


def run(test: Test, llm: FakeLLM | None = None, settings: ServerSettings | None = None) -> None:
    async def whole() -> None:
        fake = llm or FakeLLM()
        transport = httpx2.ASGITransport(create_app(fake, settings))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
            await test(Client(fake, http))

    asyncio.run(whole())


@pytest.mark.slow
def test_one_long_text_drives_out_many_short_ones(monkeypatch):
    """However many, and the turn itself is kept."""
    monkeypatch.setattr(sessions, "MAX_SESSION_TEXT_MIB", 1)
    settings = ServerSettings(max_sessions_per_key=2000)

    async def test(client: Client) -> None:
        for number in range(1100):
            assert (await client.chat(f"s{number}")).status_code == 200
        long = [{"role": "user", "content": "x" * (2**20 - 2000)}]
        assert (await client.chat("long", messages=long)).status_code == 200
        assert len(await client.ids()) == 1101

    run(test, FakeLLM(max_model_len=2**21), settings)


class Gate:
    """A script that says a piece and waits in its answer until it is let go."""

    def __init__(self) -> None:
        self.begun, self.open = asyncio.Event(), asyncio.Event()

    def __call__(self, prompt_ids: list[int], params: Any) -> Any:
        yield Delta(0, "Hel", [1])
        self.begun.set()
        yield self.open
        yield Delta(0, "lo", [2, 257], "stop")


def test_a_turn_keeps_its_prompt_and_answer_and_is_shown():
    async def test(client: Client) -> None:
        for messages in (USER, [*USER, HELLO, MORE]):
            assert (await client.chat(messages=messages)).status_code == 200
        first, second = client.llm.calls
        ((salt, tokens),) = client.llm.kept.values()
        assert (salt, tokens) == ("", [*second.prompt_ids, 1, 2, 3, 4, 257])
        assert second.prompt.startswith(first.prompt)
        shown = (await client.get(f"{SESSIONS}/s")).json()
        assert (await client.get()).json()["data"][0].keys() == shown.keys()
        assert shown.pop("created") > 0 and 0 <= shown.pop("idle_s") < 5
        pages = len(tokens) // 16
        state = {"status": "idle", "turns": 2, "tokens": len(tokens), "pages": pages, "host_pages": 2}
        assert shown == {"id": "s", "object": "session", **state}

    run(test)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_any_generating_route_has_sessions_by_field_or_header(path, stream):
    async def test(client: Client) -> None:
        body = {"messages": USER} if path == CHAT else {"prompt": "ab"}
        for fields, headers in (
            ({"session_id": "a"}, {}),
            ({}, {"x-session-id": "b"}),
            ({"session_id": "a"}, {"x-session-id": "a"}),
        ):
            assert (await client.post(path, body | {"stream": stream} | fields, **headers)).status_code == 200
        assert await client.ids() == ["a", "b"], "used last first"
        assert {tuple(tokens[-5:]) for _, tokens in client.llm.kept.values()} == {(1, 2, 3, 4, 257)}

    run(test)


def test_only_the_new_messages_may_be_sent_as_long_as_the_session_is_there():
    async def test(client: Client) -> None:
        gone = await client.chat(messages=[MORE], session_append=True)
        assert (gone.status_code, error_of(gone)["code"]) == (404, "session_not_found")
        await client.chat()
        for _ in range(2):
            assert (await client.chat(messages=[MORE], session_append=True)).status_code == 200
        rendered = [call["messages"] for call in client.llm.rendered]
        assert rendered == [USER, [*USER, HELLO, MORE], [*USER, HELLO, MORE, HELLO, MORE]]
        await client.chat(messages=[*USER, HELLO, {"role": "user", "content": "edited"}])
        await client.chat(messages=[MORE], session_append=True)
        assert client.llm.rendered[-1]["messages"][2:] == [{"role": "user", "content": "edited"}, HELLO, MORE]
        await client.delete("s")
        assert (await client.chat(messages=[MORE], session_append=True)).status_code == 404
        assert await client.ids() == []

    run(test)


def test_nothing_is_appended_to_what_is_no_conversation():
    async def test(client: Client) -> None:
        await client.post(COMPLETIONS, {"prompt": "ab", "session_id": "s"})
        await client.chat("t", messages=[*USER, HELLO], continue_final_message=True)
        await client.chat("u", session_history=False)
        for session in "stu":
            refused = await client.chat(session, messages=[MORE], session_append=True)
            assert (refused.status_code, error_of(refused)["param"]) == (400, "session_append")
        assert (await client.chat("s")).status_code == 200
        assert (await client.chat("s", messages=[MORE], session_append=True)).status_code == 200

    run(test)


@pytest.mark.parametrize(
    "session", ["", "../x", "/etc/passwd", "a/b", "..", "a\0b", "a" * 129, "é", "a b", 7, ["a"], "-a", "a\n"]
)
def test_an_id_that_is_none_is_refused(session):
    async def test(client: Client) -> None:
        for path, body in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "ab"})):
            refused = await client.post(path, body | {"session_id": session})
            assert (refused.status_code, error_of(refused)["param"]) == (400, "session_id")
        assert not client.llm.calls and await client.ids() == []

    run(test)


def test_what_is_no_turn_is_refused():
    async def test(client: Client) -> None:
        for path, body, param in (
            (CHAT, {"messages": USER, "n": 2}, "session_id"),
            (COMPLETIONS, {"prompt": "ab", "n": 2}, "session_id"),
            (COMPLETIONS, {"prompt": ["ab", "cd"]}, "session_id"),
            (COMPLETIONS, {"prompt": "ab", "session_append": True}, "session_append"),
        ):
            refused = await client.post(path, body, **{"x-session-id": "s"})
            assert (refused.status_code, error_of(refused)["param"]) == (400, param)
        differ = await client.post(CHAT, {"messages": USER, "session_id": "a"}, **{"x-session-id": "b"})
        assert (differ.status_code, error_of(differ)["param"]) == (400, "session_id")
        alone = await client.post(CHAT, {"messages": USER, "session_append": True})
        assert (alone.status_code, error_of(alone)["param"]) == (400, "session_append")
        assert not client.llm.calls and await client.ids() == []

    run(test)


def test_a_busy_session_is_a_409_and_free_when_its_answer_has_ended():
    gate = Gate()

    async def test(client: Client) -> None:
        turn = asyncio.create_task(client.chat())
        await gate.begun.wait()
        for busy in (await client.chat(), await client.post(COMPLETIONS, {"prompt": "ab", "session_id": "s"})):
            assert (busy.status_code, error_of(busy)["code"]) == (409, "session_busy")
        assert (await client.get(f"{SESSIONS}/s")).json()["status"] == "busy"
        assert 'jaxinfer:sessions{state="busy"} 1.0' in (await client.get("/metrics")).text
        gate.open.set()
        assert (await turn).status_code == 200
        assert (await client.chat()).status_code == 200
        assert 'jaxinfer:sessions{state="idle"} 1.0' in (await client.get("/metrics")).text
        assert "jaxinfer:session_pages{" in (await client.get("/metrics")).text

    run(test, FakeLLM(gate))


def test_a_deleted_session_s_pages_go_at_once_and_a_turn_under_way_is_not_recorded():
    gate = Gate()

    async def test(client: Client) -> None:
        gate.open.set()
        await client.chat()
        (key,) = client.llm.kept
        gone = await client.delete("s")
        assert gone.json() == {"id": "s", "object": "session", "deleted": True}
        assert (client.llm.forgotten, client.llm.kept) == ([key], {})
        for missing in (
            await client.delete("s"),
            await client.get(f"{SESSIONS}/s"),
            await client.delete("..%2Fmodels"),
        ):
            assert missing.status_code == 404
        gate.open.clear()
        gate.begun.clear()
        turn = asyncio.create_task(client.chat())
        await gate.begun.wait()
        assert (await client.delete("s")).status_code == 200
        gate.open.set()
        assert (await turn).json()["choices"][0]["message"]["content"] == "Hello"
        assert client.llm.kept == {} and await client.ids() == []

    run(test, FakeLLM(gate))


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_that_did_not_end_well_was_never_there(stream):
    """Aborted by its id, failed, refused: the session is what it was, or is not there."""
    gate = Gate()

    def script(prompt_ids: list[int], params: Any) -> Any:
        if params.seed == 13:
            yield Delta(0, "x", [1])
            yield Delta(0, "", [], "error", error="the row was not finite")
        elif params.seed == 7:
            yield from gate(prompt_ids, params)
        else:
            yield from hello(prompt_ids, params)

    async def test(client: Client) -> None:
        for existing in (False, True):
            before = (dict(client.llm.kept), await client.ids())
            gate.begun.clear()
            body = {"messages": USER, "session_id": "s", "stream": stream}
            turn = asyncio.create_task(client.post(CHAT, body | {"seed": 7}, **{"x-request-id": "x"}))
            await gate.begun.wait()
            gate.open.set()
            assert (await client.post("/abort_request", {"request_id": "x"})).json()["aborted"] == 1
            assert '"finish_reason":"abort"' in (await turn).text
            gate.open.clear()
            failed = await client.post(CHAT, body | {"seed": 13})
            assert failed.status_code == 500 or '"error"' in failed.text
            assert (await client.post(CHAT, body | {"max_tokens": 10_000})).status_code == 400
            assert (dict(client.llm.kept), await client.ids()) == before
            assert (await client.post(CHAT, body)).status_code == 200
            assert (await client.get(f"{SESSIONS}/s")).json()["turns"] == 1 + existing

    run(test, FakeLLM(script))


def test_tenants_share_no_session():
    async def test(client: Client) -> None:
        for key, said in ((ALICE, "of alice"), (BOB, "of bob")):
            assert (await client.chat(headers=key, messages=[{"role": "user", "content": said}])).status_code == 200
        assert len(client.llm.kept) == 2, "the same id is two sessions"
        assert len({salt for salt, _ in client.llm.kept.values()}) == 2
        await client.chat("of-alice", headers=ALICE)
        assert (await client.ids(ALICE), await client.ids(BOB)) == (["of-alice", "s"], ["s"])
        for refused in (
            await client.get(f"{SESSIONS}/of-alice", headers=BOB),
            await client.delete("of-alice", headers=BOB),
            await client.chat("of-alice", headers=BOB, session_append=True),
        ):
            assert (refused.status_code, error_of(refused)["code"]) == (404, "session_not_found")
        assert (await client.get()).status_code == (await client.delete("s")).status_code == 401
        await client.chat(headers=BOB, session_append=True)
        assert "of alice" not in client.llm.calls[-1].prompt
        assert not client.llm.forgotten

    run(test, settings=LOCKED)


def test_of_too_many_sessions_the_one_used_least_recently_goes():
    async def test(client: Client) -> None:
        for session in ("a", "b", "a", "c", "d"):
            await client.chat(session)
        assert await client.ids() == ["d", "c", "a"]
        assert len(client.llm.kept) == 3 and not client.llm.forgotten, "what it kept is cached like any other page"

    run(test, settings=ServerSettings(max_sessions_per_key=3))


def test_a_turn_that_comes_to_nothing_takes_nobody_s_place():
    async def test(client: Client) -> None:
        for session in "ab":
            await client.chat(session)
        assert (await client.chat("c", session_append=True)).status_code == 404
        assert (await client.chat("d", max_tokens=10_000)).status_code == 400
        assert await client.ids() == ["b", "a"]

    run(test, settings=ServerSettings(max_sessions_per_key=2))


def test_where_all_sessions_are_busy_a_further_one_waits():
    gate = Gate()

    async def test(client: Client) -> None:
        turn = asyncio.create_task(client.chat("a"))
        await gate.begun.wait()
        refused = await client.chat("b")
        assert (refused.status_code, error_of(refused)["code"]) == (429, "too_many_sessions")
        assert int(refused.headers["retry-after"]) >= 1
        gate.open.set()
        await turn
        assert (await client.chat("b")).status_code == 200
        assert await client.ids() == ["b"]

    run(test, FakeLLM(gate), ServerSettings(max_sessions_per_key=1))


def test_an_idle_session_is_dropped_in_time_and_a_used_one_is_not():
    gate = Gate()

    async def test(client: Client) -> None:
        gate.open.set()
        await client.chat("idle")
        gate.open.clear()
        gate.begun.clear()
        turn = asyncio.create_task(client.chat("used"))
        await gate.begun.wait()
        await asyncio.sleep(0.4)
        assert await client.ids() == ["used"], "a turn may take longer"
        gate.open.set()
        await turn
        async with asyncio.timeout(5):
            while await client.ids():
                await asyncio.sleep(0.02)
        assert client.llm.kept == {}

    run(test, FakeLLM(gate), ServerSettings(max_session_idle_s=0.2))


def test_hundreds_of_sessions_leave_as_many_as_may_be_there():
    async def test(client: Client) -> None:
        for number in range(300):
            await client.chat(f"s{number}")
        assert len(await client.ids()) == len(client.llm.kept) == 100

    run(test)


def test_the_text_of_all_sessions_is_bounded_and_who_has_most_gives_up_the_oldest(monkeypatch):
    monkeypatch.setattr(sessions, "MAX_SESSION_TEXT_MIB", 0.01)  # 10,485 bytes

    async def test(client: Client) -> None:
        async def say(session: str, who: dict[str, str], size: int) -> None:
            long = [USER[0] | {"name": "x" * size}]  # which no template has to show
            assert (await client.chat(session, who, messages=long)).status_code == 200

        async def goes_on(session: str, who: dict[str, str]) -> bool:
            response = await client.chat(session, who, messages=[MORE], session_append=True, max_tokens=1)
            if response.status_code == 200:
                return True
            assert (response.status_code, error_of(response)["param"]) == (400, "session_append")
            assert "send the whole conversation" in error_of(response)["message"]
            return False

        await say("bob", BOB, 3000)
        for session in "abc":
            await say(session, ALICE, 3000)  # the third is too much, and Alice has most
        assert [await goes_on(session, ALICE) for session in "abc"] == [False, True, True]
        assert await goes_on("bob", BOB)
        await say("d", ALICE, 11_000)  # alone too much
        assert not await goes_on("d", ALICE)
        assert await client.ids(ALICE) != [], "the sessions are still there, and their pages"
        for session in await client.ids(BOB):
            await client.delete(session, BOB)
        await say("e", ALICE, 9000)  # what was given up has made room
        assert await goes_on("e", ALICE)

    run(test, settings=LOCKED)


def test_a_prompt_without_an_answer_is_gone_on_from_as_it_stands():
    async def test(client: Client) -> None:
        asked = {"messages": USER, "max_tokens": 0, "session_id": "s"}
        assert (await client.post(MESSAGES, asked)).status_code == 200
        (kept,) = client.llm.kept.values()
        assert kept[1] == client.llm.calls[0].prompt_ids
        assert (await client.chat(messages=[MORE], session_append=True)).status_code == 200
        assert client.llm.rendered[-1]["messages"] == [*USER, MORE]

    run(test)
