"""What logprobs cost in Python: the engine's thread, and the server that writes them. No device, no model.

The real scheduler over steps whose results are there at once, then the real message, text side and frames. The most
likely tokens are any of closing.py's made-up vocabulary, as with random weights. Figures are CPU time of the one thread
for each token, the least of several tries.

    PYTHONPATH=.:kernels python benchmarks/logprobs_time.py
"""

import functools
import gc
import time
from array import array

import msgspec
import numpy as np
from closing import VOCAB, tokenizer_json
from host_time import LIMITS, TRIES, NoDevice

from jaxinfer.engine.engine import Engine
from jaxinfer.engine.sequence import Add, Output, Request
from jaxinfer.llm.answer import Answer, feed
from jaxinfer.llm.wire import FromEngine
from jaxinfer.protocol.forms import Usage
from jaxinfer.protocol.responses import AnswerEnvelope as Form
from jaxinfer.protocol.responses import Chunks, Kind
from jaxinfer.protocol.sampling import GenerationDefaults, SamplingParams, resolve_sampling
from jaxinfer.runtime.mask_table import Masks
from jaxinfer.runtime.plan import Logprobs, Plan, StepResult
from jaxinfer.text.tokenizer import Tokenizer

STEPS, TOP = 40, 20
ENCODER = msgspec.msgpack.Encoder()
SAMPLING = resolve_sampling(SamplingParams(temperature=0), GenerationDefaults(), random_seed=0)


class Progress:
    """How far a request is: nobody asks."""

    usage, metrics = Usage(), dict[str, float | None]()


class Done:
    """A step that has its result."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def draw(self, masks: Masks) -> None:
        raise AssertionError("no request of this measurement is masked")

    def wait(self) -> StepResult:
        return self._result


class Steps(NoDevice):
    """Hands back, for every step, one of a few results that were made beforehand."""

    def __init__(self, rows: int) -> None:
        super().__init__(LIMITS)
        self._results = [_result(rows, seed) for seed in range(8)]
        self._num_steps = 0

    def run(self, plan: Plan) -> Done:  # type: ignore[override]
        self._num_steps += 1
        found, num_rows = self._results[self._num_steps % len(self._results)], len(plan.rows)
        return Done(StepResult(found.tokens[:num_rows], found.finite[:num_rows], found.logprobs))


def _result(rows: int, seed: int) -> StepResult:
    random = np.random.default_rng(seed)
    ids = random.integers(0, VOCAB - 1, (rows, TOP), np.int32)
    values = np.sort(-random.exponential(4, (rows, TOP)).astype(np.float32))[:, ::-1]
    logprobs = Logprobs(values[:, 0], np.ones(rows, np.int32), ids, values)
    return StepResult(ids[:, 0].copy(), np.ones(rows, bool), logprobs)


def engine_us(rows: int, num: int | None) -> tuple[float, list[list[Output]]]:
    """CPU us of the engine's thread for a token with `num` logprobs, its message too, and some steps' outputs."""
    engine = Engine(Steps(rows), LIMITS)
    for i in range(rows):
        engine.inbox.put(Add(Request(id=str(i), prompt=array("I", [i + 1] * 33), max_tokens=16000, logprobs=num)))
    while sum(sequence.decoding for sequence in engine.scheduler.running) < rows:
        engine.step()
    tries, outputs = [], list[list[Output]]()
    for _ in range(TRIES):
        began_s = time.thread_time()
        outputs = [engine.step() for _ in range(STEPS)]
        for step in outputs:
            ENCODER.encode(FromEngine(outputs=step))
        tries.append(time.thread_time() - began_s)
    return min(tries) / STEPS / rows * 1e6, outputs


@functools.cache
def made_up() -> Tokenizer:
    return Tokenizer(tokenizer_json().encode())


def server_us(rows: int, num: int | None, outputs: list[list[Output]], kind: Kind) -> float:
    """CPU us of a server's for a token: its message, its text, its frame."""
    frames = [ENCODER.encode(FromEngine(outputs=step)) for step in outputs]
    decoder, tokenizer, tries = msgspec.msgpack.Decoder(FromEngine), made_up(), list[float]()
    for _ in range(TRIES):
        requests = [Request(id=str(i), prompt=array("I", [1, 2]), max_tokens=16000, logprobs=num) for i in range(rows)]
        answers = {request.id: Answer(request, SAMPLING, tokenizer, print) for request in requests}
        chunks = {name: Chunks(Form(kind, "cmpl-0", 0, "demo", "fp"), Progress()) for name in answers}
        began_s = time.thread_time()
        for frame in frames:
            pairs = [(answers[output.request_id], output) for output in decoder.decode(frame).outputs or ()]
            for output, delta in feed(pairs, print):
                chunks[output.request_id].piece(0, delta)
        tries.append(time.thread_time() - began_s)
    return min(tries) / STEPS / rows * 1e6


def main() -> None:
    gc.collect()
    gc.freeze()
    print("| rows | logprobs | engine, us a token | completions, us a token | chat, us a token |")
    print("|---|---|---|---|---|")
    for rows in (1, 64, 256):
        for num in (None, 1, 5, 20):
            engine, outputs = engine_us(rows, num)
            completion, chat = (server_us(rows, num, outputs, kind) for kind in ("completion", "chat"))
            print(f"| {rows} | {num} | {engine:.2f} | {completion:.2f} | {chat:.2f} |", flush=True)


if __name__ == "__main__":
    main()
