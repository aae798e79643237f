import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.build import Core
from jaxinfer.text.tokenizer import Tokenizer
from tests.support.checkpoints import write_checkpoint
from tests.support.engines import build


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture(scope="session")
def engine(folder) -> tuple[EngineConfig, Core]:
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


@pytest.fixture(scope="session")
def tokenizer(folder):
    return Tokenizer.from_folder(folder)
