"""A dry run's engine for batches: the real one but for its tokens, which depend on the request alone; and pyarrow."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import start_dry_run
from jaxinfer.llm.thread import EngineThread
from tests.llm.conftest import Served

CONFIG = EngineConfig(model="demo", max_num_seqs=8, page_size=16, num_pages=257)
PYARROW = Path(__file__).parents[2] / ".clients" / "pyarrow"


@pytest.fixture(scope="module")
def arrow() -> Iterator[Any]:
    """`make clients` puts it into .clients: there for the full tier only."""
    assert (PYARROW / ".installed").exists(), "there is no pyarrow; run make clients"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PYARROW)
        import pyarrow
        import pyarrow.parquet

        yield pyarrow


@pytest.fixture(scope="session")
def dry() -> Iterator[Served]:
    served = Served(AsyncLLM(CONFIG, new_transport=partial(EngineThread, start_core=start_dry_run)))
    yield served
    served.close()
