"""What /v1/responses keeps: never more, larger or older than it may, and of each tenant its own."""

import weakref

from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.server.app import create_app
from jaxinfer.server.response_store import ENTRY_BYTES, ResponseStore
from jaxinfer.server.settings import ServerSettings
from tests.server.fakes import FakeLLM
from tests.server.http import RESPONSES, ask_app, error_of

ONE = ENTRY_BYTES + 20


def filled(*puts: tuple[str, str], **limits: int) -> ResponseStore:
    store = ResponseStore(limits.get("max_responses", 100), limits.get("max_bytes", 10**6), 60.0, lambda: 0.0)
    for tenant, name in puts:
        store.put(tenant, name, b"b" * 10, b"h" * 10)
    return store


def held(store: ResponseStore) -> list[tuple[str, str]]:
    return [(tenant, name) for tenant, own in store._held.items() for name in own]


def test_too_many_cost_the_oldest():
    assert held(filled(("a", "1"), ("a", "2"), ("a", "3"), max_responses=2)) == [("a", "2"), ("a", "3")]
    assert held(filled(("a", "1"), ("a", "2"), ("a", "3"), max_bytes=2 * ONE)) == [("a", "2"), ("a", "3")]


def test_who_stores_most_loses_first():
    store = filled(("b", "0"), *(("a", str(number)) for number in range(9)), max_responses=3)
    assert held(store) == [("b", "0"), ("a", "7"), ("a", "8")]
    store = filled(("b", "0"), *(("a", str(number)) for number in range(9)), max_bytes=3 * ONE)
    assert held(store) == [("b", "0"), ("a", "7"), ("a", "8")]


def test_one_that_is_larger_than_all_room_is_not_kept():
    store = filled(("a", "1"), max_bytes=ONE - 1)
    assert held(store) == [] and store._num_bytes == {}


def test_who_goes_on_from_one_meanwhile_shares_its_history():
    store = filled()
    store.put("a", "1", b"{}", b'[{"role": "user", "content": "hi"}]')
    first = store.history("a", "1")
    assert first == [{"role": "user", "content": "hi"}] and store.history("a", "1") is first
    assert store.history("b", "1") is None and store.history("a", "2") is None
    seen = weakref.ref(first)
    del first
    assert seen() is None, "nobody has it"


def test_what_is_too_old_is_gone():
    now_s = [0.0]
    store = ResponseStore(9, 10**6, 60.0, lambda: now_s[0])
    store.put("a", "1", b"", b"")
    now_s[0] = 60.0
    store.put("b", "2", b"", b"")
    assert store.get("a", "1") is not None
    now_s[0] = 61.0
    assert store.get("a", "1") is None and held(store) == [("b", "2")]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 2000), st.booleans(), st.floats(0, 20)),
        max_size=60,
    )
)
def test_the_limits_hold_after_every_call(steps):
    now_s = 0.0
    store = ResponseStore(4, 4000, 30.0, lambda: now_s)
    for number, (tenant, name, size, is_put, wait_s) in enumerate(steps):
        now_s += wait_s
        if is_put:
            store.put(tenant, f"{name}-{number}", b"x" * size, b"")
        else:
            store.forget(tenant, f"{name}-{number - 1}")
        entries = [stored for own in store._held.values() for stored in own.values()]
        assert len(entries) <= 4 and sum(stored.num_bytes for stored in entries) <= 4000
        assert all(now_s - stored.stored_s <= 30.0 for stored in entries)
        assert store._num_bytes == {
            tenant: sum(stored.num_bytes for stored in own.values()) for tenant, own in store._held.items()
        }


def test_the_server_s_settings_are_its_limits():
    app = create_app(FakeLLM(), ServerSettings(max_stored_responses=1))
    first, second = (ask_app(app, "POST", RESPONSES, json={"input": "x"}).json()["id"] for _ in range(2))
    assert "at most 1 responses" in error_of(ask_app(app, "GET", f"{RESPONSES}/{first}"))["message"]
    assert ask_app(app, "GET", f"{RESPONSES}/{second}").status_code == 200
