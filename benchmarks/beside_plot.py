"""Draw README.md's pictures of figures and facts, and print the tables of docs/performance.md.

    python benchmarks/beside_plot.py

Reads benchmarks/beside-vllm.json (both engines, measured by one client) and pyproject.toml. Writes SVG files into
docs/pictures.
"""

import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "benchmarks" / "beside-vllm.json"
PICTURES = ROOT / "docs" / "pictures"
ENGINES = ("jaxinfer", "vLLM")
COLOURS = {"jaxinfer": "#3d6f8e", "vLLM": "#a9b4bb"}
WIDTH, BAR_LEFT, BAR_WIDTH, BAR_HEIGHT = 560, 124, 340, 22
FONT = "font-family='system-ui, sans-serif'"


def main() -> None:
    figures = json.loads(FIGURES.read_text())
    PICTURES.mkdir(exist_ok=True)
    for name, picture in pictures(figures, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]):
        (PICTURES / name).write_text(picture)
    print("\n".join(tables(figures)))


def pictures(figures: dict[str, Any], project: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and texts of the SVG files. project: of pyproject.toml."""
    yield "beside-vllm.svg", plot(figures)
    yield "python.svg", badge("Python", project["requires-python"].removeprefix(">=") + " or later")
    yield "licence.svg", badge("licence", project["license"])


def plot(figures: dict[str, Any]) -> str:
    """Output tokens per second of one stream and of 64, a scale for each."""
    lines = [text(16, 30, "Output tokens per second over HTTP, one H100", "font-size='17' font-weight='600'")]
    top = 62
    for load in figures["http"]:
        if load["streams"] in (1, 64):
            lines += group(top, load)
            top += 152
    height = top - 4
    return svg(WIDTH, height, [f"<rect width='{WIDTH}' height='{height}' rx='8' fill='#ffffff'/>", *lines])


def group(top: int, load: dict[str, Any]) -> Iterator[str]:
    """The bars of one load: two for each model."""
    streams = "one stream" if load["streams"] == 1 else f"{load['streams']} streams"
    name = f"{streams}, {load['prompt_tokens']} tokens in and {load['output_tokens']} out each"
    yield text(16, top, name, "font-size='14' fill='#57636a'")
    most = max(found[engine]["tokens_per_s"] for found in load["figures"].values() for engine in ENGINES)
    y = top + 10
    for model, found in load["figures"].items():
        for engine in ENGINES:
            rate = found[engine]["tokens_per_s"]
            width = max(1, round(BAR_WIDTH * rate / most))
            yield text(BAR_LEFT - 8, y + 16, f"{model} {engine}", "font-size='14' text-anchor='end'")
            yield f"<rect x='{BAR_LEFT}' y='{y}' width='{width}' height='{BAR_HEIGHT}' fill='{COLOURS[engine]}'/>"
            yield text(BAR_LEFT + width + 7, y + 16, f"{rate:,}", "font-size='14'")
            y += BAR_HEIGHT + 2
        y += 8


def badge(name: str, value: str) -> str:
    left, right = 14 + 7 * len(name), 14 + 7 * len(value)
    return svg(
        left + right,
        22,
        [
            f"<rect width='{left + right}' height='22' rx='4' fill='#3d6f8e'/>",
            f"<path d='M4 0H{left}V22H4A4 4 0 0 1 0 18V4A4 4 0 0 1 4 0' fill='#4b555b'/>",
            text(left / 2, 15, name, "font-size='12' text-anchor='middle'", "#ffffff"),
            text(left + right / 2, 15, value, "font-size='12' text-anchor='middle'", "#ffffff"),
        ],
    )


def text(x: float, y: float, words: str, style: str, colour: str = "#1d2529") -> str:
    fill = "" if "fill=" in style else f" fill='{colour}'"
    return f"<text x='{x:g}' y='{y:g}' {FONT} {style}{fill}>{words}</text>"


def svg(width: int, height: int, lines: Sequence[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>"
    return "\n".join([head, *lines, "</svg>"]) + "\n"


def tables(figures: dict[str, Any]) -> Iterator[str]:
    """Markdown. A figure of jaxinfer that is worse than vLLM's is bold."""
    columns = [(model, engine) for model in figures["models"] for engine in ENGINES]
    yield "| | " + " | ".join(f"{model}: {engine}" for model, engine in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for load in figures["http"]:
        cells = [http_cell(load["figures"][model], engine) for model, engine in columns]
        yield f"| {load['streams']} x ({load['prompt_tokens']} in, {load['output_tokens']} out) | {' | '.join(cells)} |"
    cached, ready = figures["cached_prefix_ttft_ms"], figures["ready_s"]
    cells = [f"{cached[model][engine] or 'not measured'}" for model, engine in columns]
    yield f"| 4,096 tokens cached and 32 new: first token ms | {' | '.join(cells)} |"
    yield f"| ready, nothing compiled: s | {' | '.join(ready[model][engine] for model, engine in columns)} |"
    yield ""
    yield "| 64 streams of 1.5B, 512 in and 256 out, tok/s | jaxinfer | vLLM |"
    yield "|---|---|---|"
    for row in figures["sampling"]:
        ours, theirs = row["jaxinfer"], row["vLLM"]
        yield f"| {row['asked']} | {marked(f'{ours:,}', ours < theirs)} | {theirs:,} |"


def http_cell(found: dict[str, Any], engine: str) -> str:
    """`first token mean, p99; tok/s`."""
    mine, other = found[engine], found["vLLM"]
    is_ours = engine == "jaxinfer"
    mean, p99 = (
        marked(f"{mine[name]:g}", is_ours and mine[name] > other[name]) for name in ("ttft_mean_ms", "ttft_p99_ms")
    )
    rate = marked(f"{mine['tokens_per_s']:,}", is_ours and mine["tokens_per_s"] < other["tokens_per_s"])
    return f"{mean}, {p99}; {rate}"


def marked(figure: str, is_worse: bool) -> str:
    return f"**{figure}**" if is_worse else figure


if __name__ == "__main__":
    main()
