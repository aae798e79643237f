"""A17: a model that says what an attacker wants. It is text; nothing runs, nothing is loaded, nobody else is asked."""

import dataclasses
import time
from typing import Any

import pytest

from jaxinfer.errors import InvalidRequest
from tests.browser.chat import Chat, soon

pytestmark = pytest.mark.slow

RUN = "window.pwned=1"
MARKUP = [
    f"<script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<svg onload={RUN}><script>{RUN}</script><use href='data:image/svg+xml,x'/></svg>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<a href='javascript:{RUN}'>x</a>",
    f"<details open ontoggle={RUN}><summary>s</summary></details>",
    "<style>*{background:url(https://evil.example/s)}</style><link rel=stylesheet href=https://evil.example/l>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/m'><base href=https://evil.example/>",
    "<form action=https://evil.example/f><input autofocus onfocus=alert(1)><button>go</button></form>",
    f"<math><mtext></p><img src=x onerror={RUN}></mtext></math>",
    f"</code></pre></script><script>{RUN}</script>",
    f"<template><script>{RUN}</script></template><x-y onclick={RUN}>z</x-y>",
    "<h1 id=input class=main name=title>clobbered</h1>",
]
ADDRESSES = [
    f"javascript:{RUN}",
    f"JaVaScRiPt:{RUN}",
    f"java\tscript:{RUN}",
    f"javascript&colon;{RUN}",
    f"\x01javascript:{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    f"vbscript:{RUN}",
    "file:///etc/passwd",
    "blob:null/x",
    "//evil.example/x",
    "/v1/models",
    "#input",
    "chrome://settings",
]


def elements(chat: Chat, selector: str) -> int:
    return int(chat[selector].count())


def check_nothing_ran(chat: Chat) -> None:
    """The page's own elements are divs, text blocks, buttons and their icons; what the model said made no other."""
    assert chat.page.evaluate("window.pwned") is None
    assert chat.page.url == chat.server + "/"
    bad = (
        "script, img, iframe, object, embed, form, input, style, link, meta, base, math, template, [id], [style], [src]"
    )
    assert elements(chat, f"#log :is({bad})") == 0
    attributes = chat["#log *"].evaluate_all("(all) => all.flatMap((element) => element.getAttributeNames())")
    assert not [name for name in attributes if name.startswith("on")]
    hrefs = chat["#log a"].evaluate_all("(all) => all.map((a) => a.protocol)")
    assert set(hrefs) <= {"https:", "http:", "mailto:"}
    assert elements(chat, "#log svg:not(.icon > svg)") == 0


@pytest.mark.parametrize("around", ["{}", "```html\n{}\n```", "- {}", "> {}", "| a |\n|---|\n| {} |", "# {}", "**{}**"])
def test_markup_in_an_answer_is_shown_as_text(chat, says, around):
    says.answers["Go"] = [piece for markup in MARKUP for piece in (around.format(markup.replace("|", "")), "\n\n")]
    chat.ask("Go")
    check_nothing_ran(chat)
    shown = chat.last
    for markup in MARKUP:
        assert markup.replace("*", "") in shown.replace("*", "")


def test_links_lead_to_web_and_mail_alone(chat, says):
    links = [f"[click{n}]({address}) ![image{n}]({address}) <{address}>" for n, address in enumerate(ADDRESSES)]
    good = "[good](https://example.org/) <mailto:a@b.example> ![picture](https://evil.example/pixel.png)"
    says.answers["Go"] = ["\n\n".join([*links, good])]
    chat.ask("Go")
    check_nothing_ran(chat)
    assert chat["#log a"].evaluate_all("(all) => all.map((a) => a.href)") == [
        "https://example.org/",
        "mailto:a@b.example",
        "https://evil.example/pixel.png",
    ]
    assert chat.last.count("click") == len(ADDRESSES)


def test_thinking_titles_errors_and_names_are_text_too(open_chat, says, llm):
    chat = open_chat()
    evil = MARKUP[1]
    says.answers[evil] = [f"<think>{evil}</think>{evil}", InvalidRequest(evil)]
    chat.page.keyboard.press("Control+,")
    chat["#s-stop"].evaluate("(input, text) => { input.value = text; input.dispatchEvent(new Event('input')) }", evil)
    chat.page.keyboard.press("Escape")
    chat.ask(evil)
    chat[".thinking summary"].click()
    chat.waits_for(".thinking .text", evil)
    assert evil in chat[".error"].inner_text() and evil in chat["#title"].inner_text()
    assert evil in chat["#chosen"].inner_text() and chat.titles == [evil]
    chat.page.reload()
    chat.waits_for(".assistant .text", evil)
    check_nothing_ran(chat)


def test_a_model_s_name_and_note_are_text(open_chat, llm):
    evil = MARKUP[1]
    llm._info = dataclasses.replace(llm.info, served_names=(evil,), note=evil)
    chat = open_chat()
    assert chat["#model"].inner_text() == evil and evil in chat["#empty-note"].inner_text()
    check_nothing_ran(chat)


def test_the_policy_stops_what_the_page_itself_would_never_do(chat):
    page = chat.page
    tries = {
        "a script": "const s = document.createElement('script'); s.append('window.pwned=1'); document.body.append(s)",
        "markup": "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.pwned=1>')",
        "a style": "document.body.setAttribute('style', 'background:red')",
        "asking another": "fetch('https://evil.example/').catch(() => 0)",
        "an image": "new Image().src = 'https://evil.example/i'",
        "a handler": "document.body.setAttribute('onclick', 'window.pwned=1')",
        "eval": "setTimeout('window.pwned=1')",
    }
    for name, code in tries.items():
        page.evaluate(f"() => {{ try {{ {code} }} catch (error) {{ console.info(error) }} }}")
        soon(lambda: page.evaluate("window.broken.splice(0).length") > 0)
        assert page.evaluate("window.pwned") is None, name
    page.locator("body").click(position={"x": 5, "y": 300})
    chat.asked.clear()  # of what the browser refused to ask
    assert page.evaluate("window.pwned") is None


def test_a_megabyte_is_shown_and_the_page_stays_usable(chat, says):
    """As prose, as one line, as code, and as what would nest without end."""
    texts = {
        "prose": "Some **bold** and `coded` words in a sentence.\n\n" * 5_000,
        "line": "word " * 40_000,
        "code": "```\n" + "x = [1, 2, 3]  # a line of code\n" * 20_000 + "```",
        "blocks": "> " * 3_000 + "- " * 3_000,
        "nesting": "*a " * 20_000 + "a* " * 20_000 + "[" * 20_000 + "](https://x.example)" * 5_000,
    }
    for name, text in texts.items():
        says.answers[name] = [text[at : at + 4_000] for at in range(0, len(text), 4_000)]
        began_s = time.monotonic()
        chat.ask(name)
        chat["#input"].fill("typed")
        assert chat["#input"].input_value() == "typed"
        assert time.monotonic() - began_s < 20
        chat.button("New chat").click()
        chat["#input"].fill("")
    check_nothing_ran(chat)


SEND = """async (base) => {
  const body = JSON.stringify({ messages: [{ role: "user", content: "x" }], prompt: "x", input: "x" });
  for (const path of ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/v1/chat/completions"]) {
    for (const type of ["text/plain", "application/x-www-form-urlencoded"])
      await fetch(base + path, { method: "POST", mode: "no-cors", headers: { "content-type": type }, body });
    const unnamed = { body: new Blob([body]), referrerPolicy: "no-referrer" };
    await fetch(base + path, { method: "POST", mode: "no-cors", ...unnamed });
    navigator.sendBeacon(base + path, body);
    const form = document.createElement("form");
    Object.assign(form, { method: "post", action: base + path, enctype: "text/plain", target: "answer" });
    const field = document.createElement("input");
    // JSON, with the sign that stands between a field's name and its value in a string
    [field.name, field.value] = [body.replace(/}$/, ',"and": "'), '"}'];
    const frame = Object.assign(document.createElement("iframe"), { name: "answer" });
    form.append(field);
    document.body.append(frame, form);
    await new Promise((resolve) => { frame.addEventListener("load", resolve); form.submit(); });
    frame.remove();
  }
}"""


@pytest.mark.parametrize("is_sandboxed", [False, True])
def test_a_page_of_another_site_makes_the_model_do_nothing(
    browser: Any, address: str, llm: Any, is_sandboxed: bool
) -> None:
    page, statuses = browser.new_page(), []
    page.on("response", lambda response: statuses.append(response.status) if response.request.method == "POST" else 0)
    page.goto(f"{address.replace('127.0.0.1', 'localhost')}/health")  # another host's name is another site
    if is_sandboxed:  # origin null
        page.evaluate("document.body.innerHTML = '<iframe sandbox=\"allow-scripts allow-forms\" srcdoc=x></iframe>'")
        page.wait_for_selector("iframe")
    page.frames[-1].evaluate(SEND, address)
    page.wait_for_timeout(300)
    page.close()
    assert statuses and set(statuses) == {415}
    assert not (llm.calls or llm.rendered or llm.encoded)
