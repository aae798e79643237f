"""How many tokens per second one generate call makes over many requests: all of them are there at the beginning."""

from jaxinfer.bench import machine
from jaxinfer.bench.latency import Say, generate
from jaxinfer.bench.machine import Limits
from jaxinfer.bench.prompts import Prompts
from jaxinfer.bench.report import Report, Table, Value
from jaxinfer.bench.steps import Timed
from jaxinfer.bench.work import Work, work_of
from jaxinfer.config import Resolved
from jaxinfer.errors import ConfigError
from jaxinfer.llm.events import OnEvent

COLUMNS = (
    "requests x (in, out)",
    "seconds",
    "output tok/s",
    "total tok/s",
    "requests/s",
    "of the serial roof %",
    "steps",
    "tokens a step",
    "host us a step",
    "preemptions",
    "cached_tokens",
)

type Load = tuple[int, int, int]  # requests, prompt tokens, output tokens


def run(resolved: Resolved, loads: list[Load], tries: int, on_event: OnEvent, say: Say) -> Report:
    """Start the model and run every load `tries` times; the best counts."""
    config = resolved.config
    work, limits = work_of(config), machine.measure_limits(config.device)
    with Timed.start(config, on_event) as timed:
        rows = []
        for load in loads:
            rows.append(measure(timed, load, tries, work, limits))
            say(f"{rows[-1][0]}: {rows[-1][2]:,.0f} output tok/s")
        compiles = timed.core.stats().compiles_after_ready
    facts = [*machine.facts(limits, resolved), *timed.facts, ("compiles after ready", str(compiles))]
    return Report("jaxinfer bench throughput", facts, [Table("offline", COLUMNS, rows)], NOTES)


def measure(timed: Timed, load: Load, tries: int, work: Work, limits: Limits) -> tuple[Value, ...]:
    """One row."""
    requests, prompt, output = load
    together = min(requests, timed.core.limits.max_num_seqs)
    llm, log = timed.llm(prefix_caching=False)
    if prompt + output > llm.info.max_model_len:
        fact = f"{prompt} + {output} is more than max_model_len {llm.info.max_model_len}"
        raise ConfigError(f"prompt and answer must fit, {fact}; shorten them")
    prompts = Prompts(llm.info.vocab_size, timed.config.seed)
    generate(llm, prompts.many(together, prompt), 2)
    index, before = len(log.steps), llm.stats()
    tried = [generate(llm, prompts.many(requests, prompt), output) for _ in range(tries)]
    seconds, outputs = min(tried, key=lambda one: one[0])
    host_s, steps = log.since(index).host_s, (len(log.steps) - index) / tries
    tokens = requests * (prompt + output)
    roof = 100 * work.offline_s(limits, requests, prompt, output, together) / seconds
    rates = (seconds, requests * output / seconds, tokens / seconds, requests / seconds, roof)
    host = None if host_s is None else host_s * 1e6
    preempted = (llm.stats().preemptions - before.preemptions) / tries
    cached = sum(one.metrics.cached_tokens for one in outputs)
    return f"{requests}x({prompt},{output})", *rates, steps, tokens / steps, host, preempted, cached


NOTES = (
    "Fresh random token ids, greedy, EOS ignored, no text made, prefix cache off. The serial roof is the time to read "
    "weights, keys and values in every step at the bandwidth measured in this run, plus the operations at its matmul "
    "rate.",
)
