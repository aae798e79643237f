"""A channel whose other end is slow, wedged or gone."""

import socket
import threading
from array import array
from collections.abc import Iterator

import pytest

from jaxinfer.engine.sequence import Add, Keep, Request
from jaxinfer.llm.wire import Channel, FromEngine, ToEngine

MANY = 4 * 2**20 // 50_000  # messages of 4 MiB together: far more than a socket holds


def message(number: int) -> ToEngine:
    return ToEngine(keep=Keep(str(number), "", tuple(range(128)) * 390))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def posting(channel: Channel[ToEngine, FromEngine]) -> threading.Thread:
    """A thread that posts many messages and then one."""

    def post() -> None:
        for number in range(MANY):
            channel.post(message(number))
        channel.post(ToEngine(keep=Keep("last", "", ())))

    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    return thread


def test_whoever_posts_to_an_end_that_does_not_read_goes_on_and_the_order_is_kept(ends):
    channel: Channel[ToEngine, FromEngine] = Channel(ends[0], FromEngine)
    thread = posting(channel)
    thread.join(5)
    assert not thread.is_alive()
    engine: Channel[FromEngine, ToEngine] = Channel(ends[1], ToEngine)
    assert [engine.receive() for _ in range(MANY)] == [message(number) for number in range(MANY)]
    last = engine.receive()
    assert last is not None and last.keep is not None and last.keep.session == "last"


def test_a_usual_message_is_sent_without_a_thread(ends, monkeypatch):
    monkeypatch.setattr(threading, "Thread", None)
    channel: Channel[ToEngine, FromEngine] = Channel(ends[0], FromEngine)
    engine: Channel[FromEngine, ToEngine] = Channel(ends[1], ToEngine)
    for number in range(20):
        assert channel.post(message(number))
        assert engine.receive() == message(number)


def test_messages_that_come_in_pieces_or_several_at_once_are_read_as_they_were_sent(ends):
    requests = [Request(str(size), array("I", range(size)), max_tokens=1) for size in (1, 30_000, 2, 3)]
    channel: Channel[ToEngine, FromEngine] = Channel(ends[0], FromEngine)
    engine: Channel[FromEngine, ToEngine] = Channel(ends[1], ToEngine)
    for request in requests:
        assert channel.post(ToEngine.of(Add(request)))
    received = [engine.receive() for _ in requests]
    assert [message.message for message in received if message] == [Add(request) for request in requests]


def test_what_waits_for_an_end_that_goes_is_let_go(ends):
    channel: Channel[ToEngine, FromEngine] = Channel(ends[0], FromEngine)
    posting(channel).join(5)
    senders = [thread for thread in threading.enumerate() if thread.name == "jaxinfer-unsent"]
    assert len(senders) == 1
    ends[1].close()
    senders[0].join(5)
    assert not senders[0].is_alive()
    assert not channel.post(message(0))
