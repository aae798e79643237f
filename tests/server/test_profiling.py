"""/start_profile and /stop_profile: there only where the operator gave a folder, one trace at a time, bounded."""

import asyncio
import re

import httpx2
import pytest

from jaxinfer.errors import EngineError
from jaxinfer.server.app import create_app
from jaxinfer.server.openapi import OPERATIONS, PROFILING
from jaxinfer.server.profiling import MAX_PROFILES, Profiling
from jaxinfer.server.settings import ServerSettings
from jaxinfer.server.tenants import ApiKey
from tests.server.fakes import FakeLLM
from tests.server.http import ask, error_of

START, STOP = "/start_profile", "/stop_profile"


class Tracing(FakeLLM):
    """Notes the folders it was asked to trace into; fails as an engine does where told to."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.asked: list[str | None] = []
        self._fault = fault

    async def profile(self, folder: str | None) -> None:
        self.asked.append(folder)
        if self._fault:
            raise EngineError(self._fault)


def post_all(llm, settings: ServerSettings, *paths: str) -> list[httpx2.Response]:
    """One after the other, to one app."""

    async def run() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(create_app(llm, settings))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            return [await client.post(path) for path in paths]

    return asyncio.run(run())


def test_without_a_folder_there_is_nothing():
    for path in (START, STOP):
        response = ask(Tracing(), "POST", path)
        assert (response.status_code, error_of(response)["code"]) == (404, "not_found")
    assert {START, STOP}.isdisjoint(ask(Tracing(), "GET", "/openapi.json").json()["paths"])


def test_a_trace_goes_into_the_operator_s_folder_under_a_name_of_ours(tmp_path):
    llm, settings = Tracing(), ServerSettings(profile_folder=tmp_path)
    started, stopped = post_all(llm, settings, f"{START}?folder=/tmp/mine", STOP)
    name = started.json()["profile"]
    assert re.fullmatch(r"\d{8}-\d{6}-0", name)
    assert stopped.json() == {"profile": name}
    assert llm.asked == [str(tmp_path / name), None]
    document = ask(llm, "GET", "/openapi.json", settings).json()
    assert document["paths"].keys() == {operation.path for operation in OPERATIONS + PROFILING}
    assert document["paths"][START]["post"]["responses"].keys() >= {"200", "409"}
    assert document["components"]["schemas"]["Profile"]["required"] == ["profile"]
    page = ask(llm, "GET", "/docs", settings).text
    assert all(f"curl -X POST http://HOST:PORT{path}<" in page for path in (START, STOP))


def test_there_is_one_at_a_time(tmp_path):
    llm, settings = Tracing(), ServerSettings(profile_folder=tmp_path)
    answers = post_all(llm, settings, STOP, START, START, STOP, STOP, START)
    assert [answer.status_code for answer in answers] == [409, 200, 409, 200, 409, 200]
    codes = [error_of(answer)["code"] for answer in answers if answer.status_code == 409]
    assert codes == ["no_profile", "profile_running", "no_profile"]
    assert len(llm.asked) == 3


def test_a_trace_that_nobody_stops_ends_by_itself(tmp_path):
    async def run() -> None:
        llm = Tracing()
        profiling = Profiling(llm, tmp_path, max_s=0.02)
        await profiling.start()
        async with asyncio.timeout(5):
            while len(llm.asked) < 2:
                await asyncio.sleep(0.01)
        assert llm.asked[1] is None
        await profiling.start()
        await profiling.stop()
        await asyncio.sleep(0.05)
        assert llm.asked[3:] == [None], "who is stopped is not stopped again"

    asyncio.run(run())


def test_the_folder_does_not_fill_without_end(tmp_path):
    for number in range(MAX_PROFILES):
        (tmp_path / str(number)).mkdir()
    (refused,) = post_all(Tracing(), ServerSettings(profile_folder=tmp_path), START)
    assert (refused.status_code, error_of(refused)["code"]) == (409, "too_many_profiles")


def test_an_engine_that_cannot_is_an_error_without_its_inside(tmp_path):
    llm = Tracing("RuntimeError: a secret folder")
    failed, again = post_all(llm, ServerSettings(profile_folder=tmp_path), START, START)
    assert (failed.status_code, error_of(failed)["code"]) == (500, "profile_failed")
    assert "secret" not in failed.text
    assert again.status_code == 500, "it was not taken for running"


@pytest.mark.parametrize("path", [START, STOP])
def test_a_key_is_asked_for_and_an_engine_that_serves(tmp_path, path):
    settings = ServerSettings(profile_folder=tmp_path, api_keys=(ApiKey("alice", "sk-0123456789"),))
    assert ask(Tracing(), "POST", path, settings).status_code == 401
    llm = Tracing()
    llm.status = "draining"
    assert ask(llm, "POST", path, ServerSettings(profile_folder=tmp_path)).status_code == 503
    assert llm.asked == []
