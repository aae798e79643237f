"""A dry run's engine for batches: the real one but for its tokens, which depend on the request alone."""

from collections.abc import Iterator
from functools import partial

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import start_dry_run
from jaxinfer.llm.thread import EngineThread
from tests.llm.conftest import Served

CONFIG = EngineConfig(model="demo", max_num_seqs=8, page_size=16, num_pages=257)


@pytest.fixture(scope="session")
def dry() -> Iterator[Served]:
    served = Served(AsyncLLM(CONFIG, new_transport=partial(EngineThread, start_core=start_dry_run)))
    yield served
    served.close()
