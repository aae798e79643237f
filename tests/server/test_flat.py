"""Ten thousand requests, a third of which their clients leave: memory, threads and files come back."""

import asyncio
from collections import Counter

import httpx2
import pytest

from tests.server.dry import dry_server
from tests.server.http import COMPLETIONS
from tests.server.rest import Place, ends_at_rest
from tests.support.processes import family, footprint

NUM_REQUESTS, AT_ONCE = 10_000, 24
NUM_WORDS = 500  # a tokenizer remembers the last 10,000, which takes a kilobyte or more for each
MOST_KIB = 4 * 2**10  # that the last eight thousand may add, all processes together: half a kilobyte each


def ask(place: Place, numbers: range) -> Counter[str]:
    """Streams of 16 tokens, each of another seed; how they ended."""

    async def run() -> Counter[str]:
        room, ends = asyncio.Semaphore(AT_ONCE), Counter[str]()
        async with httpx2.AsyncClient(base_url=place.base, timeout=60, verify=False) as client:

            async def one(number: int) -> None:
                body = {"prompt": f"number {number % NUM_WORDS}", "seed": number, "temperature": 1, "max_tokens": 16}
                body |= {"stream": True, "ignore_eos": True}
                async with room, client.stream("POST", COMPLETIONS, json=body) as response:
                    assert response.status_code == 200
                    async for line in response.aiter_lines():
                        if number % 3 == 0 and line:
                            ends["left"] += 1
                            return
                        ends["whole"] += line == "data: [DONE]"

            await asyncio.gather(*map(one, numbers))
        return ends

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_requests_with_aborts_leave_memory_threads_and_files_as_they_were(tmp_path):
    def held_kib() -> int:
        return sum(footprint(pid).kib for pid in family(served.pid))

    with dry_server(tmp_path / "log", "demo", "--dry-run-step-ms", "1", "--max-num-seqs", "32") as served:
        ask(served.place, range(2000))
        with ends_at_rest(served.place):
            before = held_kib()
            ends = ask(served.place, range(2000, NUM_REQUESTS))
        assert ends.total() == NUM_REQUESTS - 2000 and abs(3 * ends["left"] - ends.total()) < 6
        assert held_kib() - before < MOST_KIB
