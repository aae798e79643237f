"""A prefix that one engine exports is one that another of equal weights has cached: it answers with the same tokens.

Over real DeviceRunners on the CPU, in float32: a dense model, and a family of every kind of layer (test_toy_law).
"""

import dataclasses
import functools
from collections.abc import Sequence
from concurrent.futures import Future

import jax
import pytest

from jaxinfer.cache.manager import CacheManager
from jaxinfer.cache.spec import CacheLayout, layout_of
from jaxinfer.config import Limits
from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import Add, Call, Keep, Request
from jaxinfer.errors import ConfigError
from jaxinfer.runtime.exports import model_digest
from jaxinfer.runtime.programs import Helper
from jaxinfer.runtime.runner import DeviceRunner
from jaxinfer.testing.faults import Fault, Faults, FaultStruck, FaultyRunner
from tests.engine import test_toy_law as toy
from tests.engine.client import Answer
from tests.engine.device import FakeRunner, make_limits
from tests.runtime.test_compiled import donated_leaves, faults_of
from tests.support.engines import from_cache
from tests.support.tiny_runner import FEW, TINY, make_runner


@dataclasses.dataclass(frozen=True)
class Model:
    """Two runners of equal weights, and a prompt of which 48 tokens are whole pages that all groups can resume at."""

    runners: tuple[DeviceRunner, DeviceRunner]
    limits: Limits
    layout: CacheLayout
    tile: int
    pages: int  # of all tables, that an export of the prompt has

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple((7 * i * i + 3) % 89 for i in range(50))


@functools.cache
def model_of(name: str) -> Model:
    if name == "toy":
        tables = len(toy.LAYOUT.windows)
        assert toy.LAYOUT.windows == (9, None) and toy.LAYOUT.num_snapshots
        return Model(toy.runners(), toy.LIMITS, toy.LAYOUT, toy.TILE, 12 * tables - 10)
    first, second = (from_cache(make_runner(limits=FEW)) for _ in range(2))
    second._executables = first._executables
    return Model((first, second), FEW, layout_of(TINY.caches("float32"), FEW.page_size), 64, 3)


@pytest.fixture(params=["dense", "toy"])
def model(request: pytest.FixtureRequest) -> Model:
    return model_of(request.param)


class Client:
    """An engine and what it is asked; every invariant checked after every step."""

    def __init__(self, model: Model, number: int = 0, faults: Faults | None = None, **changes: object) -> None:
        limits = dataclasses.replace(model.limits, **changes)
        model.runners[number].reset()
        runner = FaultyRunner(model.runners[number], faults or Faults())
        self.engine = Engine(runner, limits, cache=CacheManager(limits, model.layout, tile=model.tile))
        self.answers: dict[str, Answer] = {}

    def add(self, prompt: Sequence[int], max_tokens: int = 8, **changes: object) -> Answer:
        request = Request(str(len(self.answers)), prompt, max_tokens, **changes)
        self.engine.inbox.put(Add(request))
        answer = self.answers[request.id] = Answer(request, 0)
        return answer

    def step(self) -> None:
        for output in self.engine.step():
            self.answers[output.request_id].take(output)
        self.engine.check()

    def finish(self) -> None:
        while self.engine.has_work:
            self.step()

    def ask(self, prompt: Sequence[int], **changes: object) -> Answer:
        answer = self.add(prompt, **changes)
        self.finish()
        return answer

    def call[T](self, function: "functools.partial[T]") -> T:
        self.engine.inbox.put(Call(function, future := Future()))
        self.step()
        return future.result()

    def export_prefix(self, tokens: Sequence[int], salt: str = "") -> bytes:
        return self.call(functools.partial(self.engine.export_prefix, tokens, salt))

    def import_prefix(self, data: bytes) -> int:
        return self.call(functools.partial(self.engine.import_prefix, data))


def exported(model: Model) -> tuple[bytes, Answer]:
    """What the first engine exports of the prompt, and its answer to it."""
    client = Client(model)
    answer = client.ask(model.prompt)
    return client.export_prefix(model.prompt), answer


def test_another_engine_finds_the_prefix_and_answers_with_the_same_tokens(model):
    data, answer = exported(model)
    client = Client(model, 1)
    assert client.import_prefix(data) == 48
    again = client.ask(model.prompt)
    assert (again.tokens, again.cached_tokens) == (answer.tokens, 48)
    assert client.engine.stats().pages_loaded == model.pages
    longer = client.ask([*model.prompt, *answer.tokens, 3])
    assert longer.tokens == Client(model).ask([*model.prompt, *answer.tokens, 3]).tokens


def test_what_was_imported_is_exported_as_the_same_bytes_before_and_after_it_was_found(model):
    data, _ = exported(model)
    client = Client(model, 1)
    client.import_prefix(data)
    assert client.export_prefix(model.prompt) == data, "from the host"
    client.ask(model.prompt)
    assert client.export_prefix(model.prompt) == data, "from the device"


def test_importing_twice_changes_nothing(model):
    data, answer = exported(model)
    client = Client(model, 1)
    for _ in range(2):
        assert client.import_prefix(data) == 48
        assert client.engine.stats().host_pages == model.pages
    assert client.ask(model.prompt).tokens == answer.tokens
    assert client.import_prefix(data) == 48, "what is on the device stays there"
    assert client.engine.stats().host_pages == 0
    assert client.ask(model.prompt).cached_tokens == 48


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_an_import_between_steps_changes_no_answer_where_all_pages_are_in_use(model, run_ahead):
    data, answer = exported(model)
    tables = len(model.layout.windows)
    pages = 2 * -(-58 // model.limits.page_size) * tables + 1
    others = [[i, *range(2, 40)] for i in range(2)]
    expected = [Client(model).ask(prompt, max_tokens=16).tokens for prompt in others]
    client = Client(model, 1, num_pages=pages, run_ahead=run_ahead)
    running = [client.add(prompt, max_tokens=16) for prompt in others]
    for _ in range(4):
        client.step()
    assert client.engine.has_work and all(found.reason is None for found in running)
    assert client.import_prefix(data) == 48
    assert client.import_prefix(client.export_prefix(others[0])) > 0, "of a prompt that is being answered"
    client.finish()
    assert [found.tokens for found in running] == expected
    assert client.ask(model.prompt).tokens == answer.tokens


def test_what_has_room_on_the_host_is_taken_and_nothing_where_a_part_is_worth_nothing():
    model = model_of("dense")
    data, answer = exported(model)
    client = Client(model, 1, num_host_pages=2)
    assert client.import_prefix(data) == 32
    again = client.ask(model.prompt)
    assert (again.tokens, again.cached_tokens) == (answer.tokens, 32)
    other = Client(model)
    other.ask([5] * 20)
    client = Client(model, 1, num_host_pages=3)
    assert client.import_prefix(data) == 48
    assert client.import_prefix(other.export_prefix([5] * 20)) == 16
    assert client.ask(model.prompt).cached_tokens == 32, "its last page has made room"
    with pytest.raises(ConfigError, match="room for 1 pages of this prefix, got 0; raise kv_offloading_bytes"):
        Client(model, 1, num_host_pages=0).import_prefix(data)
    model = model_of("toy")
    client = Client(model, 1, num_host_pages=model.pages - 1)
    with pytest.raises(ConfigError, match=f"room for {model.pages} pages of this prefix, got {model.pages - 1}"):
        client.import_prefix(exported(model)[0])
    assert client.engine.stats().host_pages == 0


def test_pages_of_a_session_that_wait_on_the_host_are_exported_from_there():
    model = model_of("dense")
    data, _ = exported(model)
    client = Client(model, 1, num_pages=6)
    answer = client.ask(model.prompt, session=True)
    client.engine.inbox.put(Keep("one", "", (*model.prompt, *answer.tokens)))
    client.ask([1] * 60)
    assert client.engine.stats().host_pages >= 2, "some of them"
    assert client.export_prefix(model.prompt) == data


def test_a_salt_s_prefix_is_found_under_that_salt_alone():
    model = model_of("dense")
    client = Client(model)
    client.ask(model.prompt, salt="tenant")
    with pytest.raises(ConfigError, match="must be cached to be exported, of these 50 tokens no whole page of 16 is"):
        client.export_prefix(model.prompt)
    data = client.export_prefix(model.prompt, "tenant")
    client = Client(model, 1)
    assert client.import_prefix(data) == 48
    assert client.ask(model.prompt).cached_tokens == 0
    assert client.ask(model.prompt, salt="tenant").cached_tokens == 48


def test_a_device_that_fails_while_it_exports_costs_no_answer_and_the_caller_is_told(model):
    _, answer = exported(model)
    client = Client(model, 1, Faults(Fault("save_pages")))
    running = client.add(model.prompt)
    while not running.tokens:
        client.step()
    with pytest.raises(FaultStruck):
        client.export_prefix(model.prompt)
    client.finish()
    assert running.tokens == answer.tokens and client.engine.stats().recoveries == 1


def test_a_snapshot_is_loaded_in_place():
    """With a copy, an import would take the memory of all pages once more."""
    model = model_of("toy")
    Client(model, 1).import_prefix(exported(model)[0])
    program = model.runners[1]._programs[Helper.LOAD_SNAPSHOT]
    assert faults_of(model.runners[1]._executables[Helper.LOAD_SNAPSHOT], donated_leaves(program)) == []


def test_another_model_s_prefix_is_refused():
    data, _ = exported(model_of("dense"))
    with pytest.raises(ConfigError, match="must have model 'ToyForCausalLM .*' here, got 'Qwen3ForCausalLM"):
        Client(model_of("toy")).import_prefix(data)


def test_a_model_is_known_by_its_config_by_every_bit_of_its_weights_and_by_their_dtype():
    mine = model_of("dense").runners[0]._params
    digests = [
        model_digest(TINY, mine),
        model_digest(dataclasses.replace(TINY, norm_eps=1e-5), mine),
        model_digest(TINY, mine.replace(final_norm=mine.final_norm.at[5].add(2**-23))),
        model_digest(TINY, mine.replace(embed=mine.embed[::-1])),
        model_digest(TINY, jax.tree.map(lambda array: array.view("int32"), mine)),
    ]
    assert len(set(digests)) == 5 and model_digest(TINY, model_of("dense").runners[1]._params) == digests[0]


def test_without_host_memory_or_a_model_nothing_is_exported():
    limits = make_limits()
    client = Engine(FakeRunner(limits), limits)
    for call in (functools.partial(client.export_prefix, [1]), functools.partial(client.import_prefix, b"")):
        with pytest.raises(ConfigError, match="host memory, there is none for pages; set kv_offloading_bytes"):
            call()
