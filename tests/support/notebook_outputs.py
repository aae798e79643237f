"""What two runs of a notebook must show alike: all outputs but the numbers that measure how fast a machine was.

Those are: what is named in seconds (`total_s=0.04`), the ms of a recording's table, and in cells with the tag
`measures` every word with a digit in it, what doubts a limit, and all that a picture shows but its words. Pictures also
have a date and ids of their own.
"""

import itertools
import re
from typing import Any

from jaxinfer.bench.report import BEYOND, NOT_TRUSTED

MEASURES = "measures"
SECONDS = re.compile(r"(?<=_s=)[\d.e+-]+")
MS_OF_A_RECORDING = re.compile(r"(?<=<td>)\d+\.\d(?=</td>)")
DATE = re.compile(r"<dc:date>[^<]*")
DRAWN_ID = re.compile(r"\b(?:image|[mp]|C\w+_)[0-9a-f]{10}\b")
LABEL = re.compile(r"<!-- (\D*?) -->")  # matplotlib's words in a picture are curves; each has its text beside it
KERNELS = re.compile(r"(\| \w+ (?:attention|linear) \| )(?:xla|cpu)")  # a machine has a compiler or has not
INSTRUCTIONS = re.compile(r"^\| instructions \| \w+ \|\n", re.MULTILINE)  # then also those of its processor
DECIMAL = re.compile(r"(-?\d+\.\d+)")
ROUNDING = 0.002  # of decimals, of which another processor may round the last one otherwise


def shown(notebook: dict[str, Any]) -> list[str]:
    """Each output of each cell, in order, in every form that it has, without what may differ."""
    found = []
    for number, cell in enumerate(notebook["cells"]):
        is_measured = MEASURES in cell["metadata"].get("tags", ())
        for output in cell.get("outputs", ()):
            forms = output["data"] if "data" in output else {output["output_type"]: output["text"]}
            found += [f"cell {number}, {form}: {_steady(''.join(forms[form]), form, is_measured)}" for form in forms]
    return found


def differences(kept: dict[str, Any], ran: dict[str, Any]) -> list[str]:
    """What is shown by one of them alone, or otherwise."""
    pairs = itertools.zip_longest(shown(kept), shown(ran), fillvalue="nothing")
    return [f"kept: {one[:2000]}\n ran: {other[:2000]}" for one, other in pairs if not _alike(one, other)]


def _steady(text: str, form: str, is_measured: bool) -> str:
    text = INSTRUCTIONS.sub("", KERNELS.sub(r"\1#", text))
    if form == "image/svg+xml":
        return "\n".join(LABEL.findall(text)) if is_measured else _drawn(DATE.sub("", text))
    if is_measured:
        lines = (line.replace(BEYOND, "") for line in text.split("\n") if NOT_TRUSTED not in line)
        return re.sub(r"\S*\d\S*", "#", "\n".join(lines))
    return MS_OF_A_RECORDING.sub("#", SECONDS.sub("#", text))


def _drawn(picture: str) -> str:
    """With ids in the order in which they come."""
    names: dict[str, str] = {}
    return DRAWN_ID.sub(lambda match: names.setdefault(match[0], f"id{len(names)}"), picture)


def _alike(one: str, other: str) -> bool:
    ours, theirs = DECIMAL.split(one), DECIMAL.split(other)
    return len(ours) == len(theirs) and all(
        a == b or (DECIMAL.fullmatch(a) and DECIMAL.fullmatch(b) and abs(float(a) - float(b)) <= ROUNDING)
        for a, b in zip(ours, theirs, strict=True)
    )
