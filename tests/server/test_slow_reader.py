"""A client that never reads its answer, with the patience that is the default: it is dropped after a minute, at a price
that is bounded for the server and none for others (A45).
"""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.dry import PACE, PACED, dry_server, gaps_of_a_stream, share_of_the_pace
from tests.server.http import COMPLETIONS, wait_until
from tests.server.rest import ends_at_rest
from tests.support.attempts import assert_below
from tests.support.processes import footprint

NUM_READERS, MOST_MIB = 4, 64
DROPPED_S = 60 + 45  # beside what it takes until their connections are full


def never_read(port: int) -> socket.socket:
    """Ask for 4,000 tokens, streamed, of which the kernels can hold little: each comes with twenty others."""
    body = b'{"prompt": "x", "n": 2, "max_tokens": 2000, "ignore_eos": true, "stream": true, "logprobs": 20}'
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before it connects, or the window is large
    reader.connect(("127.0.0.1", port))
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    reader.sendall(head.encode() + b"\r\n\r\n" + body)
    return reader


@pytest.mark.slow
def test_readers_that_never_read_are_dropped_and_cost_others_nothing(tmp_path):
    with (
        dry_server(tmp_path / "log", "demo", *PACED) as served,
        dry_server(tmp_path / "control", "demo", *PACED) as control,
        ends_at_rest(served.place),
    ):

        def share() -> float:
            with ThreadPoolExecutor(2) as pool:
                return share_of_the_pace(*pool.map(gaps_of_a_stream, (served.port, control.port)))

        before = footprint(served.pid).kib
        readers = [never_read(served.port) for _ in range(NUM_READERS)]
        log = tmp_path / "log"
        assert_below(1, share, PACE)
        wait_until(lambda: log.read_text().count("a client was dropped (slow_client)") == NUM_READERS, DROPPED_S)
        assert footprint(served.pid).kib - before < MOST_MIB * 2**10
        counted = f'jaxinfer:aborted_requests_total{{reason="slow_client"}} {NUM_READERS:.1f}'
        wait_until(lambda: counted in served.client.get("/metrics").text)

        def load() -> tuple[int, int]:
            told = served.client.get("/load").json()
            return told["server_load"], told["pages_owned"]

        wait_until(lambda: load() == (0, 0))
        for reader in readers:
            reader.close()
