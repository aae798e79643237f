"""A notebook as a page: its texts, its code, and what the run that is kept in it printed."""

import dataclasses
import json
from base64 import b64encode
from html import escape
from typing import Any

from docs.site.markdown import Rendered, code, render

# the richest form that a reader of a page can see, first
FORMS = ("image/svg+xml", "text/html", "text/markdown", "text/plain")


def render_notebook(source: str, file: str) -> Rendered:
    """source: the .ipynb's text.    file: where it lies in the repository."""
    pieces: list[Rendered] = []
    for cell in json.loads(source)["cells"]:
        text = "".join(cell["source"])
        pieces.append(_text(text, file, pieces) if cell["cell_type"] == "markdown" else _as_is(code(text, "cell.py")))
        for output in cell.get("outputs", ()):
            pieces.append(_output(output, file, pieces))
    return Rendered(
        "".join(piece.html for piece in pieces),
        tuple(section for piece in pieces for section in piece.sections),
        tuple(name for piece in pieces for name in piece.files),
    )


def _text(text: str, file: str, before: list[Rendered]) -> Rendered:
    return render(text, file, [section.anchor for piece in before for section in piece.sections])


def _as_is(html: str) -> Rendered:
    return Rendered(html, (), ())


def _output(output: dict[str, Any], file: str, before: list[Rendered]) -> Rendered:
    if output["output_type"] == "stream":
        return _as_is(f'<pre class="output">{escape("".join(output["text"]))}</pre>')
    form = next(form for form in FORMS if form in output["data"])
    text = "".join(output["data"][form])
    if form == "text/plain":
        return _as_is(f'<pre class="output">{escape(text)}</pre>')
    if form == "image/svg+xml":  # a picture of its own, since two drawings use the same ids
        name = escape("".join(output["data"]["text/plain"]))
        text = f'<img alt="{name}" src="data:{form};base64,{b64encode(text.encode()).decode()}">'
    shown = _text(text, file, before) if form == "text/markdown" else _as_is(text)
    return dataclasses.replace(shown, html=f'<div class="output scroll">{shown.html}</div>')
