"""Figures that others published of a shape, to stand beside ours where the card and the model's shape are the same.

Sources: the performance page of github.com/tianyuxbear/zedinfer (RTX 4090: ZedInfer 0.1.0, llama.cpp e4832e3, vLLM
0.13.0, SGLang 0.5.7, as it counts); for the H200 the figures of vLLM 0.26.0 of which README.md tells the settings.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from jaxinfer.bench.report import Table, Value, shown
from jaxinfer.bench.suites.job import SuiteJob

type Outline = tuple[int | str, ...]
type Timed = tuple[Outline, int, int, float | None, float | None]

B1_5: Outline = (28, 1536, 12, 2, 8960, "bfloat16")
B8: Outline = (36, 4096, 32, 8, 12288, "bfloat16")
COLUMNS = ("prefill tok/s published", "decode tok/s published")
NOTE = (
    "published: the best figure that somebody else published of this shape on such a card, with the engine it is of: "
    "on an RTX 4090 as ZedInfer counts; on an H200 vLLM's, decoding strictly, prefill by the best of 6 first tokens."
)


@dataclasses.dataclass(frozen=True)
class Figure:
    """Tokens per second of an engine. card: a part of its name.    length: of prompt and answer."""

    card: str
    outline: Outline
    engine: str
    batch: int
    length: int
    prefill: float | None
    decode: float | None


ENGINES = ("ZedInfer 0.1.0", "llama.cpp e4832e3", "vLLM 0.13.0", "SGLang 0.5.7")
RTX_4090 = {  # prefill and decode of ENGINES, and ZedInfer's decode of four together
    (B1_5, 128): ((4661, 15076, 13332, 5967), (189.3, 245.4, 209.8, 247.4), 513.7),
    (B1_5, 256): ((5329, 21949, 21961, 12178), (170.2, 245.6, 209.8, 246.4), 453.8),
    (B1_5, 512): ((5566, 24647, 29476, 23853), (141.2, 241.5, 209.2, 245.8), 370.2),
    (B1_5, 1024): ((5612, 24259, 36611, 34162), (105.3, 241.0, 208.3, 244.4), 268.6),
    (B8, 128): ((2980, 4442, 4666, 3001), (54.0, 58.3, 57.0, 59.5), 183.3),
    (B8, 256): ((3374, 6601, 7467, 5246), (50.4, 58.3, 56.7, 59.2), 171.5),
    (B8, 512): ((2914, 7430, 8563, 6860), (43.3, 57.7, 56.5, 58.9), 149.5),
    (B8, 1024): ((2261, 7040, 9284, 8213), (35.3, 57.8, 56.1, 58.3), 125.2),
}
H200: tuple[Timed, ...] = (  # outline, requests together, length, ms to the first token, decode tok/s
    *((B1_5, 1, 128, 6.5, 494), (B1_5, 1, 512, 6.5, None), (B1_5, 1, 1024, 11.4, None)),
    *((B1_5, 4, 128, None, 1959), (B1_5, 8, 128, None, 3759), (B1_5, 32, 128, None, 15005)),
    *((B8, 1, 128, 8.9, 193), (B8, 1, 512, 15.9, None), (B8, 1, 1024, 26.6, None)),
    *((B8, 4, 128, None, 762), (B8, 8, 128, None, 1450), (B8, 32, 128, None, 5701)),
)


def figures() -> Iterator[Figure]:
    for (outline, length), (prefills, decodes, together) in RTX_4090.items():
        for engine, prefill, decode in zip(ENGINES, prefills, decodes, strict=True):
            yield Figure("RTX 4090", outline, engine, 1, length, prefill, decode)
        yield Figure("RTX 4090", outline, ENGINES[0], 4, length, None, together)
    for outline, batch, length, first_ms, rate in H200:
        yield Figure("H200", outline, "vLLM 0.26.0", batch, length, first_ms and length / first_ms * 1e3, rate)


def of_the_same(job: SuiteJob) -> list[Figure]:
    """Of this card and this shape."""
    return [one for one in figures() if one.card in job.limits.kind and one.outline == job.work.outline]


def beside(job: SuiteJob, table: Table, shapes: Sequence[tuple[int, int]]) -> Table:
    """A table with COLUMNS, if anybody has published figures of the same. shapes: batch and length of its rows."""
    same = of_the_same(job)
    if not same:
        return table
    rows = []
    for row, shape in zip(table.rows, shapes, strict=True):
        known = [one for one in same if (one.batch, one.length) == shape]
        rows.append(
            (*row, best((one.prefill, one.engine) for one in known), best((one.decode, one.engine) for one in known))
        )
    return Table(table.title, (*table.columns, *COLUMNS), rows)


def best(told: Iterator[tuple[float | None, str]]) -> Value:
    """The highest rate and whose it is."""
    rates = [(rate, engine) for rate, engine in told if rate is not None]
    if not rates:
        return None
    rate, engine = max(rates)
    return f"{shown(float(rate))} ({engine})"
