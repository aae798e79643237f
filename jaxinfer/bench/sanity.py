"""Is a model what it should be, on this machine? Each is loaded, asked, timed and checked, one after another."""

import dataclasses
import math
import time
from collections.abc import Sequence

from jaxinfer.bench import machine
from jaxinfer.bench.latency import Say, generate
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Report, Table, Value
from jaxinfer.config import EngineConfig, Resolved, counted
from jaxinfer.errors import JaxInferError
from jaxinfer.llm.build import start_core
from jaxinfer.llm.events import Event, OnEvent
from jaxinfer.llm.llm import LLM
from jaxinfer.llm.outputs import RequestOutput
from jaxinfer.protocol.sampling import SamplingParams

COLUMNS = ("model", "ready s", "prefill ms", "prefill tok/s", "decode tok/s", "answer", "checks")
PREFILL, DECODED, TRIES = 128, 64, 3
NOTHING: tuple[Value, ...] = (None,) * (len(COLUMNS) - 2)
BETTER_THAN_GUESSING = 0.5  # nats a token
SHOWN_CHARS = 60
PLAIN = (
    "Once upon a time there was a small house by a river. A girl lived there with her dog, and every morning the two "
    "of them went to the market to buy bread. It rained all day, and they were happy to be at home again."
)


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that must hold. said: what was seen when it does not."""

    name: str
    holds: bool
    said: str = ""

    def __str__(self) -> str:
        return self.name if self.holds else f"**{self.name}: {self.said}**"


def run(resolved: Resolved, models: Sequence[str], prompt: str, on_event: OnEvent, say: Say) -> Report:
    """Measure each model. One that cannot be run is a row that says why; the first such has the exit code."""
    rows: list[tuple[Value, ...]] = []
    of_checks = of_errors = 0
    for name in models:
        say(f"{name}:")
        try:
            figures, checks = measure(dataclasses.replace(resolved.config, model=name), prompt, on_event)
        except JaxInferError as error:
            figures, checks = NOTHING, [Check("runs", False, str(error))]
            of_errors = of_errors or error.exit_code
        rows.append((name, *figures, ", ".join(map(str, checks))))
        of_checks = of_checks or int(not all(check.holds for check in checks))
    facts = [(what, which) for what, which in machine.facts(resolved=resolved) if what != "model"]
    return Report("jaxinfer sanity", facts, [Table("models", COLUMNS, rows)], NOTES, of_errors or of_checks)


NOTES = (
    f"Prefill: {PREFILL} random tokens or what the context holds, the best of {TRIES}. Decode: {DECODED} tokens of one "
    "row after the first. Checks: what the model says of plain English is finite and, unless its weights are random, "
    "better than guessing; a greedy answer repeats itself; nothing is left behind or compiled after ready.",
)


def measure(config: EngineConfig, prompt: str, on_event: OnEvent) -> tuple[tuple[Value, ...], list[Check]]:
    """The figures of COLUMNS and the checks; a model whose numbers are not finite is asked nothing more."""
    began = time.perf_counter()
    core = start_core(config, on_event)
    core.warming.result()
    ready_s = time.perf_counter() - began
    on_event(Event("measure", "times, an answer and checks"))
    with LLM.over(config, core) as llm:
        finite, *checks = _of_plain_english(llm, is_random=config.load_format == "dummy")
        if not finite.holds:
            return (ready_s, *NOTHING[1:]), [finite]
        length = min(PREFILL, llm.info.max_model_len - DECODED - 1)
        prompts = Prompts(llm.info.vocab_size, config.seed)
        first_s = _best(llm, prompts, length, 1)
        step_s = min(_after_first_s(llm, prompts, length) for _ in range(TRIES)) / DECODED
        said = [_answer(llm, prompt) for _ in range(2)]
        checks = [finite, *checks, *_of_the_engine(llm, said)]
    text = " ".join(said[0].outputs[0].text.split())[:SHOWN_CHARS].replace("|", r"\|")
    return (ready_s, first_s * 1e3, length / first_s, 1 / step_s, text), checks


def _best(llm: LLM, prompts: Prompts, length: int, num_tokens: int) -> float:
    return min(generate(llm, prompts.many(1, length), num_tokens)[0] for _ in range(TRIES))


def _after_first_s(llm: LLM, prompts: Prompts, length: int) -> float:
    """Seconds that DECODED tokens took after the first one of the same answer."""
    seconds, (output,) = generate(llm, prompts.many(1, length), DECODED + 1)
    return seconds - output.metrics.time_to_first_token_s


def _answer(llm: LLM, prompt: str) -> RequestOutput:
    params = SamplingParams(temperature=0, max_tokens=32)
    if llm.info.has_chat_template:
        return llm.chat([{"role": "user", "content": prompt}], params)[0]
    return llm.generate(prompt, params)[0]


def _of_plain_english(llm: LLM, *, is_random: bool) -> list[Check]:
    """The first says whether it is finite."""
    found = llm.generate(PLAIN, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))[0]
    if found.outputs[0].error is not None:
        return [Check("finite", False, found.outputs[0].error)]
    pairs = zip(found.prompt_token_ids, found.prompt_logprobs or (), strict=True)
    logprobs = [entry[token].logprob for token, entry in pairs if entry is not None]
    strange = [value for value in logprobs if not -math.inf < value <= 0]
    mean, guess = -sum(logprobs) / len(logprobs), math.log(llm.info.vocab_size)
    finite = Check(
        "finite", not strange, f"{len(strange)} of {counted(len(logprobs), 'token')} have log-probability {strange[:1]}"
    )
    if is_random:
        return [finite]
    fact = f"{mean:.2f} nats a token, guessing has {guess:.2f}"
    return [finite, Check("knows English", mean < guess - BETTER_THAN_GUESSING, fact)]


def _of_the_engine(llm: LLM, said: Sequence[RequestOutput]) -> list[Check]:
    first, second = (output.outputs[0].token_ids for output in said)
    stats = llm.stats()
    return [
        Check("repeats itself", first == second, f"{first} and then {second}"),
        Check("rests", stats.pages_owned == 0, f"{stats.pages_owned} pages are owned by nobody"),
        Check("compiles nothing", stats.compiles_after_ready == 0, f"{stats.compiles_after_ready} after ready"),
    ]
