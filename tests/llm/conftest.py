import asyncio
from functools import partial

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.core import Core
from jaxinfer.llm.thread import EngineThread
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.checkpoints import write_checkpoint
from tests.support.engines import build, built_before, small_config


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def engine(folder, executables) -> tuple[EngineConfig, Core]:
    """One engine for the whole session: it compiles once, and every test must leave it idle."""
    return build(folder, executables)


@pytest.fixture(autouse=True)
def leaves_the_engine_idle(request):
    yield
    if "engine" in request.fixturenames:
        started = request.getfixturevalue("engine")[1]
        started.engine.check()
        stats = started.stats()
        assert (stats.running, stats.waiting, stats.pages_owned) == (0, 0, 0)
        assert stats.pages_free + stats.pages_cached == stats.pages_total


@pytest.fixture(scope="session")
def tokenizer(folder):
    return Tokenizer.from_folder(folder)


class Served:
    """A started AsyncLLM and the event loop it belongs to. `run` gives an async test both and checks its end."""

    def __init__(self, llm: AsyncLLM) -> None:
        self.llm = llm
        self._runner = asyncio.Runner()
        self._runner.run(llm.start())

    def run(self, test):
        async def checked():
            result = await test(self.llm)
            await settled(self.llm)
            assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
            return result

        return self._runner.run(checked())

    def close(self):
        self._runner.run(self.llm.close())
        self._runner.close()


async def settled(llm):
    """Wait until the engine has let go of everything; the bound is far above two steps of a tiny model."""
    for _ in range(1000):
        stats = llm.stats()
        if not (stats.running or stats.waiting or stats.pages_owned or llm._open):
            assert stats.pages_free + stats.pages_cached == stats.pages_total
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"still busy: {stats}")


@pytest.fixture(scope="session")
def process_config(folder, executables) -> EngineConfig:
    """The settings of an engine process; its executables are cached for the session."""
    return small_config(folder, executables)


def in_thread(engine) -> AsyncLLM:
    config, core = engine
    return AsyncLLM(config, new_transport=partial(EngineThread, start_core=built_before(core)))


@pytest.fixture(scope="session", params=["thread", pytest.param("process", marks=pytest.mark.slow)])
def served(request, engine):
    """One AsyncLLM per transport: whatever holds for one must hold for the other."""
    own = in_thread(engine) if request.param == "thread" else AsyncLLM(request.getfixturevalue("process_config"))
    served = Served(own)
    yield served
    served.close()
