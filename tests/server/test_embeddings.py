"""POST /v1/embeddings and /score: bodies, bounds, clients that leave, requests that end otherwise than well."""

import base64
from typing import Any

import httpx2
import numpy as np
import pytest

from jaxinfer.llm.types import Delta
from jaxinfer.protocol.embeddings import MAX_INPUTS, shaped, similarity
from jaxinfer.server.app import create_app
from tests.server.fakes import FakeLLM, vector
from tests.server.http import EMBEDDINGS, SCORE, error_of, live, post, raw_request, wait_until


def silent(prompt_ids, params):
    yield 60.0


def ids_of(text: str) -> list[int]:
    return [256, *text.encode()]


def test_every_input_has_its_embedding_in_order():
    llm = FakeLLM()
    body = post(llm, EMBEDDINGS, {"input": ["ab", "c", "defg"], "model": "tiny"}, x_request_id="mine").json()
    assert (body["object"], body["model"], body["id"]) == ("list", "tiny", "embd-mine")
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == 3 + 2 + 5
    assert body["usage"]["completion_tokens"] == 0
    for index, (item, text) in enumerate(zip(body["data"], ("ab", "c", "defg"), strict=True)):
        assert (item["object"], item["index"]) == ("embedding", index)
        raw = vector(ids_of(text))
        np.testing.assert_allclose(item["embedding"], raw / np.linalg.norm(raw), rtol=1e-6)
    assert not llm.running


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("ab", [[256, 97, 98]]),
        (["ab"], [[256, 97, 98]]),
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
def test_an_input_is_a_text_or_ids_or_a_list_of_those(given, prompts):
    llm = FakeLLM()
    assert len(post(llm, EMBEDDINGS, {"input": given}).json()["data"]) == len(prompts)
    assert [call.prompt_ids for call in llm.calls] == prompts
    assert {call.pooling for call in llm.calls} == {"last"}


@pytest.mark.parametrize("dimensions", [None, 1, 3, 4])
@pytest.mark.parametrize("normalize", [True, False])
def test_base64_is_of_exactly_the_floats(dimensions, normalize):
    asked = {"input": "ab", "dimensions": dimensions, "normalize": normalize}
    (told,), (packed,) = (
        post(FakeLLM(), EMBEDDINGS, asked | {"encoding_format": form}).json()["data"] for form in ("float", "base64")
    )
    raw = base64.b64decode(packed["embedding"], validate=True)
    wanted = shaped(vector(ids_of("ab")).tobytes(), normalize=normalize, dimensions=dimensions)
    assert raw == wanted.astype("<f4").tobytes()
    assert np.array(told["embedding"], np.float32).tobytes() == raw
    assert len(raw) == 4 * (dimensions or 4)


def test_more_inputs_than_run_together_go_one_lot_after_the_other():
    llm = FakeLLM(max_running=8)
    inputs = [[i % 300, 7] for i in range(50)]
    body = post(llm, EMBEDDINGS, {"input": inputs, "normalize": False}).json()
    assert [item["index"] for item in body["data"]] == list(range(50))
    assert [item["embedding"][1] for item in body["data"]] == [ids[0] for ids in inputs]
    assert body["usage"]["prompt_tokens"] == 100
    assert [call.prompt_ids for call in llm.calls] == inputs
    assert not llm.running


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("ab", "cd", [("ab", "cd")]),
        ("ab", ["ab", "cd", "x"], [("ab", "ab"), ("ab", "cd"), ("ab", "x")]),
        (["ab", "cd"], ["x", "y"], [("ab", "x"), ("cd", "y")]),
    ],
)
def test_a_score_is_a_cosine_for_each_pair(first, second, pairs):
    llm = FakeLLM()
    body = post(llm, SCORE, {"text_1": first, "text_2": second}).json()
    assert [(item["object"], item["index"]) for item in body["data"]] == [("score", i) for i in range(len(pairs))]
    for item, pair in zip(body["data"], pairs, strict=True):
        one, other = (vector(ids_of(text)).astype(float) for text in pair)
        wanted = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert item["score"] == pytest.approx(wanted, abs=1e-9)
    texts = {text for pair in pairs for text in pair}
    assert len(llm.calls) == (len(pairs) + 1 if isinstance(first, str) else 2 * len(pairs))
    assert {call.prompt for call in llm.calls if 256 not in call.prompt_ids} == set()
    assert {bytes(call.prompt_ids[1:]).decode() for call in llm.calls} == texts


def test_nothing_is_alike_to_what_is_all_zeros():
    zero, one = np.zeros(3, np.float32).tobytes(), np.ones(3, np.float32).tobytes()
    assert similarity(zero, one) == similarity(zero, zero) == 0
    assert similarity(one, one) == pytest.approx(1)
    assert shaped(zero, normalize=True).tolist() == [0, 0, 0]


LONG = "x" * 600
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((EMBEDDINGS, {"input": value}, "input") for value in (None, "", [], 5, {}, [None], [True], [-1], [300])),
    *((EMBEDDINGS, {"input": value}, "input[0]") for value in ([""], [[]], [[300]])),
    (EMBEDDINGS, {"input": ["a", 5]}, "input[1]"),
    (EMBEDDINGS, {"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
    (EMBEDDINGS, {"input": ["a", LONG]}, "input[1]"),
    (EMBEDDINGS, {"input": [[1], [1] * 513]}, "input[1]"),
    *((EMBEDDINGS, {"dimensions": value}, "dimensions") for value in (0, -1, 5, 10**30, 1.5, True, "2")),
    (EMBEDDINGS, {"encoding_format": "int8"}, "encoding_format"),
    (EMBEDDINGS, {"pooling": "max"}, "pooling"),
    (EMBEDDINGS, {"normalize": 1}, "normalize"),
    (EMBEDDINGS, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    (EMBEDDINGS, {"priority": 2**31}, "priority"),
    (EMBEDDINGS, {"cache_salt": "a/b"}, "cache_salt"),
    (SCORE, {"text_1": None}, "text_1"),
    (SCORE, {"text_2": []}, "text_2"),
    (SCORE, {"text_1": ["a", "b"]}, "text_1"),
    (SCORE, {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
    (SCORE, {"text_2": ["a"] * (MAX_INPUTS // 2 + 1)}, "text_2"),
    (SCORE, {"text_2": ["a", LONG]}, "text_2[1]"),
]


@pytest.mark.parametrize(("path", "fields", "param"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_carried_out_is_refused_by_name_and_nothing_starts(path, fields, param):
    llm = FakeLLM()
    least = {"input": "ab"} if path == EMBEDDINGS else {"text_1": "ab", "text_2": "cd"}
    response = post(llm, path, least | fields)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
    assert not llm.calls


def test_an_input_beyond_the_context_is_told_so_in_the_usual_words():
    error = error_of(post(FakeLLM(), EMBEDDINGS, {"input": LONG}))
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 512 tokens; this input has 601.")


def test_a_long_input_may_be_cut_and_may_fill_the_context():
    llm = FakeLLM()
    assert post(llm, EMBEDDINGS, {"input": [[1] * 512, [1] * 600], "truncate_prompt_tokens": -1}).status_code == 200
    assert [len(call.prompt_ids) for call in llm.calls] == [512, 512]


def test_a_full_queue_is_a_429_before_anything_is_tokenized():
    llm = FakeLLM(max_running=0)
    response = post(llm, EMBEDDINGS, {"input": "ab"})
    assert (response.status_code, error_of(response)["code"]) == (429, "queue_full")
    assert "retry-after" in response.headers
    assert not llm.encoded


def test_a_queue_that_fills_up_meanwhile_leaves_nothing_running():
    llm = FakeLLM(max_running=8, stolen=6)
    assert post(llm, EMBEDDINGS, {"input": ["a", "b", "c"]}).status_code == 429
    assert len(llm.calls) == 2 and not llm.running


@pytest.mark.parametrize("path", [EMBEDDINGS, SCORE])
@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        (Delta(0, "", [], "error", error="the numbers were not finite", code="non_finite"), 500, "non_finite"),
        (Delta(0, "", [], "abort"), 503, "aborted"),
    ],
    ids=["error", "abort"],
)
def test_an_embedding_that_ends_otherwise_fails_the_request_and_ends_the_rest(path, end, status, code):
    llm = FakeLLM(lambda ids, _: [end] if ids[-1] == ord("d") else silent(ids, _))
    least = {"input": ["ab", "cd"]} if path == EMBEDDINGS else {"text_1": "ab", "text_2": "cd"}
    response = post(llm, path, least)
    assert (response.status_code, error_of(response)["code"]) == (status, code)
    assert not llm.running


@pytest.mark.parametrize("path", [EMBEDDINGS, SCORE])
def test_leaving_aborts_all_inputs(path):
    llm = FakeLLM(silent)
    least = {"input": ["a", "b", "c"]} if path == EMBEDDINGS else {"text_1": "a", "text_2": ["b", "c"]}
    with live(create_app(llm)) as port:
        connection = raw_request(port, path, least)
        wait_until(lambda: len(llm.running) == 3)
        connection.close()
        wait_until(lambda: not llm.running)
    assert set(llm.aborts) == {call.request_id for call in llm.calls}


def test_it_is_counted_as_running_and_can_be_aborted_by_its_id():
    llm = FakeLLM(silent)
    with live(create_app(llm)) as port:
        connection = raw_request(port, EMBEDDINGS, {"input": ["a", "b"]}, x_request_id="mine")
        wait_until(lambda: len(llm.running) == 2)
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/load").json()["server_load"] == 1
            assert client.post("/abort_request", json={"request_id": "mine"}).json() == {"aborted": 1}
        wait_until(lambda: not llm.running)
        connection.close()
    assert set(llm.aborts) == {call.request_id for call in llm.calls}
