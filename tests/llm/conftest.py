import pytest

from jaxinfer.llm.build import Started
from jaxinfer.config import EngineConfig
from tests.support.checkpoints import write_checkpoint
from tests.support.engines import build


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def engine(folder) -> tuple[EngineConfig, Started]:
    """One engine for the whole session: it compiles once, and every test must leave it idle."""
    return build(folder)


@pytest.fixture(autouse=True)
def leaves_the_engine_idle(request):
    yield
    if "engine" in request.fixturenames:
        started = request.getfixturevalue("engine")[1]
        started.engine.check()
        stats = started.stats()
        assert (stats.running, stats.waiting, stats.pages_owned) == (0, 0, 0)
        assert stats.pages_free + stats.pages_cached == stats.pages_total
