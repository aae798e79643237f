"""The chat page, function by function, in a headless browser against a real server over scripted answers."""

import asyncio
import dataclasses
import re

import pytest

from jaxinfer.protocol.sampling import GenerationDefaults
from tests.browser.chat import Chat, soon
from tests.browser.scripted import endless

pytestmark = pytest.mark.slow

MARKDOWN = """# Title

A **bold**, *soft*, ~~struck~~ and `coded` word, [a link](https://example.org/a?b=(c)) and https://example.org/x.
Second line\\*

```python
def f():
    return "<b>"

```

3. three
4. four
   - inner
     1. deep

   still four

| left | right |
|:-----|------:|
| a \\| b | `x` |

> quoted
> - item

---
"""


def test_an_answer_streams_and_shows_its_measures(chat, says, llm):
    gate = asyncio.Event()
    says.answers["Hello"] = ["One ", "two ", gate, "three", 0.5, ""]
    chat.send("Hello")
    chat.waits_for(".assistant .text", "One two")
    assert chat["#log"].get_attribute("aria-busy") == "true"
    assert chat["#stop"].is_visible() and not chat["#send"].is_visible()
    gate.set()
    assert chat.ended() == "One two three"
    prompt = len(llm.calls[-1].prompt_ids)
    assert re.fullmatch(r"[\d.]+ tok/s", chat.waits_for("#meter [data-name=rate]").inner_text())
    assert re.fullmatch(r"first token [\d.]+ m?s", chat["#meter [data-name=first]"].inner_text())
    assert chat["#meter [data-name=context]"].inner_text() == f"{prompt + 5} of 4,000,000 tokens"
    chat["button[title='Measures of this answer']"].click()
    facts = chat[".facts"].inner_text()
    assert "5 tokens" in facts and "tiny" in facts and f"{prompt // 2} tokens" in facts
    assert (chat["#title"].inner_text(), chat["#model"].inner_text()) == ("Hello", "tiny")


def test_what_a_server_measures_is_shown_when_it_is_asked_for(chat, says):
    metrics = '"metrics":{"queue_time_ms":1.5,"prefill_time_ms":20.25,"mean_itl_ms":4,"preemptions":2}'
    head = '{"id":"a","object":"chat.completion.chunk","created":1,"model":"tiny",'
    choice = '"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]'
    usage = '"usage":{"prompt_tokens":9,"completion_tokens":2}'
    frames = [f"{head}{choice}}}", f'{head}"choices":[],{usage},{metrics}}}', "[DONE]"]
    body = "".join(f"data: {frame}\n\n" for frame in frames)
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    chat.ask("x")
    chat["button[title='Measures of this answer']"].click()
    facts = chat[".facts"].inner_text()
    assert all(shown in facts for shown in ("1.5 ms", "20 ms", "2 times", "9 tokens", "250 tok/s"))


def test_stop_ends_the_request_in_the_server_and_keeps_what_came(chat, says, llm):
    says.answers["On"] = endless()
    for stop in (lambda: chat["#stop"].click(), lambda: chat.page.keyboard.press("Escape")):
        chat.send("On")
        chat.waits_for(".assistant:last-child .text", "word word")
        assert llm.running
        stop()
        soon(lambda: not llm.running)
        assert chat.ended().startswith("word word")
        assert chat.waits_for(".assistant:last-child .end").inner_text() == "Stopped."
        chat.button("New chat").click()
    assert chat.ask("Fine?") == "Answer 1 to: Fine?"
    assert len(llm.aborts) == 2


def test_edit_and_regenerate_make_versions_to_go_between(chat, llm):
    assert chat.ask("First") == "Answer 1 to: First"
    chat.ask("Second")
    chat.button("Regenerate").click()
    assert chat.waits_for(".assistant:last-child .text", "Answer 2 to: Second")
    chat.ended()
    assert chat[".version"].all_inner_texts() == ["2 / 2"]
    chat.button("Previous version").click()
    assert chat.said == ["First", "Answer 1 to: First", "Second", "Answer 1 to: Second"]
    assert chat[".version"].inner_text() == "1 / 2"
    assert chat.page.evaluate("document.activeElement.title") == "Next version"
    chat["button[title=Edit]"].first.click()
    chat[".editing textarea"].fill("Changed")
    chat[".editing"].get_by_text("Send").click()
    chat.waits_for(".assistant .text", "Answer 1 to: Changed")
    chat.ended()
    assert chat.said == ["Changed", "Answer 1 to: Changed"]
    assert llm.calls[-1].prompt == "user:Changed\nassistant:"
    chat.ask("More")
    assert llm.calls[-1].prompt == "user:Changed\nassistant:Answer 1 to: Changed\nuser:More\nassistant:"
    chat["button[title='Previous version']"].first.click()
    assert chat.said == ["First", "Answer 1 to: First", "Second", "Answer 1 to: Second"]
    chat.page.reload()
    chat.waits_for(".version", "1 / 2")
    assert chat.said[2:] == ["Second", "Answer 1 to: Second"]
    chat["button[title='Next version']"].first.click()
    assert chat.said[2:] == ["More", "Answer 1 to: More"]


def test_conversations_are_kept_renamed_and_deleted(chat):
    chat.ask("About cats")
    chat.button("New chat").click()
    assert chat.said == [] and chat["#empty"].is_visible()
    chat.ask("About dogs")
    assert chat.titles == ["About dogs", "About cats"]
    chat.button("About cats").click()
    chat.waits_for(".text", "Answer 1 to: About cats")
    chat.button("Rename About cats").click()
    chat["#conversations input"].fill("Felines")
    chat["#conversations input"].press("Enter")
    assert (chat.titles, chat["#title"].inner_text()) == (["About dogs", "Felines"], "Felines")
    chat.button("Rename Felines").click()
    chat["#conversations input"].fill("Nothing")
    chat["#conversations input"].press("Escape")
    chat.button("About dogs").hover()
    chat.button("Delete About dogs").click()
    assert chat.titles == ["Felines"]
    chat.button("Undo").click()
    chat.waits_for(".text", "Answer 1 to: About dogs")
    chat.button("Delete About dogs").click()
    chat.page.reload()
    chat.waits_for("#conversations .open", "Felines")
    assert chat.titles == ["Felines"]
    chat.button("Felines").click()
    assert chat.ask("And?") == "Answer 1 to: And?"
    assert chat.titles == ["Felines"], "a title that was given stays"


def test_another_tab_hears_of_a_change(chat):
    chat.ask("From here")
    other = chat.new_page(chat.server)
    other.locator("#conversations .open", has_text="From here").click()
    other.locator(".text", has_text="Answer 1").wait_for()
    chat.ask("Again")
    other.locator(".text", has_text="Answer 1 to: Again").wait_for()
    chat.button("Delete From here").click()
    soon(lambda: other.locator("#conversations .open").count() == 0)


def test_markdown_is_shown_as_what_it_means(chat, says):
    says.answers["Show"] = [MARKDOWN[at : at + 3] for at in range(0, len(MARKDOWN), 3)]
    chat.ask("Show")
    text = chat[".assistant .body > .text"]
    left_out = r"<button.*?</button>| (tabindex|class|title|target|rel|aria-level)=\"[^\"]*\""
    html = re.sub(left_out, "", text.inner_html())
    html = re.sub(r"(?<=>)\n|\n(?=<)", "", html)
    for part in (
        "<h1>Title</h1><p>A <strong>bold</strong>, <em>soft</em>, <s>struck</s> and <code>coded</code> word, ",
        '<a href="https://example.org/a?b=(c)">a link</a> and <a href="https://example.org/x">https://example.org/x</a>.'
        "<br>Second line*</p>",
        "<span>python</span></div><pre><code><span>def</span> <span>f</span>():",
        '<span>return</span> <span>"&lt;b&gt;"</span></code></pre>',
        '<ol start="3"><li><p>three</p></li><li><p>four</p><ul><li>inner<ol><li>deep</li></ol></li></ul>'
        "<p>still four</p></li></ol>",
        "<thead><tr><th>left</th><th>right</th></tr></thead><tbody><tr><td>a | b</td><td><code>x</code></td></tr>",
        "<blockquote><p>quoted</p><ul><li>item</li></ul></blockquote><hr>",
    ):
        assert part in html
    assert chat[".assistant a"].first.get_attribute("rel") == "noopener noreferrer"


def test_code_and_messages_can_be_copied(open_chat, says):
    chat = open_chat(permissions=["clipboard-read", "clipboard-write"])
    says.answers["Code"] = ["Here:\n```sh\nls -l\n\ncd ..\n```\nDone."]
    chat.ask("Code")
    clipboard = "navigator.clipboard.readText()"
    chat[".copy-code"].click()
    chat.waits_for(".copy-code", "Copied")
    assert chat.page.evaluate(clipboard) == "ls -l\n\ncd .."
    chat[".assistant [title=Copy]"].click()
    chat.waits_for(".assistant .copied")
    assert chat.page.evaluate(clipboard) == "Here:\n```sh\nls -l\n\ncd ..\n```\nDone."
    chat[".user [title=Copy]"].click()
    chat.waits_for(".user .copied")
    assert chat.page.evaluate(clipboard) == "Code"
    chat.page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # as pages of plain HTTP
    chat[".copy-code"].click()
    soon(lambda: chat.page.evaluate("document.activeElement.className") == "copy-code copied")


@pytest.mark.parametrize("begun", ["<think>\n", ""])
def test_thinking_is_folded(chat, says, llm, begun):
    gate = asyncio.Event()
    says.answers["Why"] = [begun, "Let me **see**", gate, "\n</think>\n\n", "Because."]
    chat.send("Why")
    if begun:
        chat.waits_for("summary", "Thinking")
    else:
        chat.waits_for(".text", "Let me see")
    gate.set()
    assert chat.ended() == "Because."
    thoughts = chat[".thinking .text"]
    assert not thoughts.is_visible()
    chat[".thinking summary"].click()
    chat.waits_for(".thinking .text", "Let me see")
    assert thoughts.inner_html() == "<p>Let me <strong>see</strong></p>"
    chat.ask("And?")
    assert f"assistant:{begun}Let me **see**\n</think>\n\nBecause.\n" in llm.calls[-1].prompt, "as the model said it"


def test_thinking_in_a_field_of_its_own_is_folded_and_sent_back(chat, llm):
    deltas = ['{"reasoning_content":"Hm"}', '{"reasoning_content":" hm"}', '{"content":"Yes"}']
    frames = [f'{{"model":"tiny","choices":[{{"index":0,"delta":{delta}}}]}}' for delta in deltas]
    body = "".join(f"data: {frame}\n\n" for frame in [*frames, "[DONE]"])
    chat.page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body), times=1
    )
    assert chat.ask("x") == "Yes"
    chat[".thinking summary"].click()
    chat.waits_for(".thinking .text", "Hm hm")
    chat.ask("y")
    assert llm.rendered[-1]["messages"][1]["reasoning_content"] == "Hm hm"


def test_the_settings_reach_the_server_and_stay_with_the_conversation(chat, llm):
    chat.page.keyboard.press("Control+,")
    chat["#s-system"].fill("Be brief.")
    values = {"temperature": "0.3", "top_p": "0.9", "top_k": "12", "min_p": "0.05", "max_tokens": "33"}
    rare = {"seed": "7", "repetition_penalty": "1.1", "presence_penalty": "-0.5", "frequency_penalty": "0.25"}
    chat["#settings .more summary"].click()
    for name, value in {**values, **rare, "stop": "END"}.items():
        chat[f"#s-{name}"].fill(value)
    chat["#s-thinking"].select_option("off")
    chat.page.keyboard.press("Escape")
    chat.ask("Hi")
    params, rendered = llm.calls[-1].params, llm.rendered[-1]
    assert all(getattr(params, name) == float(value) for name, value in {**values, **rare}.items())
    assert list(params.stop) == ["END"]
    assert rendered["messages"][0] == {"role": "system", "content": "Be brief."}
    assert rendered["kwargs"] == {"enable_thinking": False}
    assert chat["#chosen"].inner_text().startswith("system prompt, temperature 0.3, top p 0.9")
    chat.page.reload()
    chat.waits_for("#chosen", "system prompt")
    chat.button("New chat").click()
    chat["#chosen"].click()
    assert chat["#s-temperature"].input_value() == "0.3", "the next one starts with them"
    chat.button("Reset to model defaults").click()
    chat["#settings .close"].click()
    assert not chat["#chosen"].is_visible()
    chat.ask("Plain")
    assert llm.calls[-1].params.temperature is None and len(llm.rendered[-1]["messages"]) == 1


def test_the_fields_say_what_they_may_hold_and_what_an_empty_one_means(chat, llm):
    llm._info = dataclasses.replace(llm.info, defaults=GenerationDefaults(temperature=0.7, top_k=20))
    chat.page.reload()
    chat.waits_for("#model", "tiny")
    chat.page.keyboard.press("Control+,")
    chat["#settings .more summary"].click()
    placeholders = {name: chat[f"#s-{name}"].get_attribute("placeholder") for name in ("temperature", "top_k", "seed")}
    assert placeholders == {"temperature": "default 0.7", "top_k": "default 20", "seed": "random"}
    assert chat["#s-max_tokens"].get_attribute("placeholder") == "what fits"
    numbers = chat["label:has(input[type=number])"].all_inner_texts()
    assert len(numbers) == 9 and all(len(text.split()) > 2 or "off" in text for text in numbers)
    assert "0 to 2" in numbers[0]
    wrong = {"temperature": "9", "top_p": "-0.1", "top_k": "-2", "max_tokens": "0.5", "presence_penalty": "-2.5"}
    right = {**dict.fromkeys(wrong, "1"), "temperature": "0.123", "top_k": "-1"}
    for is_wrong, values in (("true", wrong), ("false", right)):
        for name, value in values.items():
            chat[f"#s-{name}"].fill(value)
            assert (name, chat[f"#s-{name}"].get_attribute("aria-invalid")) == (name, is_wrong)
    chat["#s-temperature"].fill("9")
    chat.page.keyboard.press("Escape")
    chat.page.keyboard.press("Control+,")
    assert chat["#s-temperature"].get_attribute("aria-invalid") == "true", "also when it is shown again"


def test_everything_can_be_done_with_keys(chat, llm):
    page = chat.page
    press = page.keyboard.press
    assert page.evaluate("document.activeElement.id") == "input"
    page.keyboard.type("One")
    press("Shift+Enter")
    page.keyboard.type("Two")
    press("Enter")
    chat.ended()
    assert llm.rendered[-1]["messages"] == [{"role": "user", "content": "One\nTwo"}]
    press("ArrowUp")
    assert page.evaluate("document.activeElement.value") == "One\nTwo"
    press("Escape")
    assert chat[".editing"].count() == 0 and page.evaluate("document.activeElement.id") == "input"
    press("ArrowUp")
    page.keyboard.type("!")
    press("Enter")
    chat.waits_for(".version", "2 / 2")
    assert chat.ended() == "Answer 1 to: One\nTwo!"
    press("Control+k")
    assert chat.said == []
    press("Control+b")
    page.wait_for_selector("#sidebar", state="hidden")
    press("Control+b")
    chat.waits_for("#sidebar")
    seen = []
    for _ in range(60):
        press("Tab")
        focused = "[document.activeElement.getAttribute('aria-label') || document.activeElement.innerText, \
            getComputedStyle(document.activeElement).outlineStyle, document.activeElement.id]"
        label, outline, name = page.evaluate(focused)
        assert outline != "none" or name in ("input", "scroller", ""), f"the focus must be seen on {label}"
        seen.append(label)
    for name in ("New chat", "Settings", "Dark or light", "Message", "Delete One", "Rename One", "Hide conversations"):
        assert any(name in (label or "") for label in seen), name


@pytest.mark.parametrize("where", [".assistant [title=Copy]", "#conversations .open"])
def test_the_focus_stays_where_it_is_when_an_answer_ends(chat, says, where):
    gate = asyncio.Event()
    says.answers["Later"] = ["Now ", gate, "done"]
    chat.ask("First")
    chat.send("Later")
    chat.waits_for(".text", "Now")
    chat[where].first.focus()
    gate.set()
    assert chat.ended() == "Now done"
    assert chat.page.evaluate("(where) => document.activeElement.matches(where)", where)


def test_an_input_method_s_enter_sends_nothing(chat, says):
    chat["#input"].fill("ni")
    chat["#input"].dispatch_event("keydown", {"key": "Enter", "isComposing": True, "bubbles": True})
    assert says.asked == [] and chat["#input"].input_value() == "ni"


def test_an_example_is_asked_with_a_click(chat):
    chat.waits_for("#examples button").click()
    assert chat.ended() == "Answer 1 to: What is 7 plus 5?"


def test_a_reader_is_left_where_it_is_and_can_go_to_the_end(chat, says):
    gate = asyncio.Event()
    says.answers["Long"] = ["line\n\n" * 60, gate, "line\n\n" * 60, "end"]
    chat.send("Long")
    chat.waits_for(".assistant .text", "line")
    gap = "(s => s.scrollHeight - s.scrollTop - s.clientHeight)(document.getElementById('scroller'))"
    soon(lambda: chat.page.evaluate(gap) < 2)
    chat.page.evaluate("document.getElementById('scroller').scrollTop = 10")
    chat.waits_for("#to-end")
    gate.set()
    chat.ended()
    assert chat.page.evaluate("document.getElementById('scroller').scrollTop") == 10
    chat["#to-end"].click()
    soon(lambda: chat.page.evaluate(gap) < 2)


def colours(chat: Chat) -> tuple[int, int]:
    """How bright background and text are, of 255."""
    found = chat.page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    back, text = (sum(map(int, re.findall(r"\d+", colour)[:3])) // 3 for colour in found)
    return back, text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_is_the_system_s_until_another_is_asked_for(open_chat, scheme):
    chat = open_chat(color_scheme=scheme)
    back, text = colours(chat)
    assert (back > 200 and text < 60) if scheme == "light" else (back < 60 and text > 200)
    chat.button("Dark or light").click()
    other = colours(chat)
    assert other[0] != back and abs(other[0] - other[1]) > 150
    chat.page.reload()
    assert colours(chat) == other
    chat.button("Dark or light").click()
    assert colours(chat) == (back, text)


def test_a_phone_shows_all_of_it_without_scrolling_sideways(open_chat, says):
    chat = open_chat(viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    says.answers["Wide"] = [
        "| " + "column | " * 30 + "\n" + "|-" * 30 + "|\n",
        "```\n" + "x" * 500 + "\n```\n",
        "y" * 500,
    ]
    chat["#input"].fill("Wide")
    chat["#send"].tap()
    chat.ended()
    assert chat.page.evaluate("document.documentElement.scrollWidth") == 360
    assert chat.page.evaluate("document.getElementById('scroller').scrollWidth <= 360")
    assert not chat["#sidebar"].is_visible()
    chat["#show-sidebar"].tap()
    chat.waits_for("#conversations .open", "Wide")
    chat["#backdrop"].tap(position={"x": 350, "y": 300})
    chat.page.wait_for_selector("#sidebar", state="hidden")
    chat["#show-sidebar"].tap()
    chat.button("Settings").tap()
    assert chat.page.evaluate("document.getElementById('settings').scrollWidth <= 360")
    for label in chat["#settings .close, #settings input"].all():
        box = label.bounding_box()
        assert box is None or box["x"] + box["width"] <= 360


def test_a_browser_that_keeps_nothing_says_so_and_chats(chat):
    chat.context.add_init_script("Object.defineProperty(window, 'indexedDB', {get() { throw new Error('not here') }})")
    chat.page.reload()
    chat.waits_for("#banner", "This browser saves no conversations here (not here).")
    assert chat.ask("Still?") == "Answer 1 to: Still?"


def test_a_full_store_says_so_until_it_has_room(chat):
    chat.page.evaluate(
        "window.put = IDBObjectStore.prototype.put;"
        "IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError') }; 0"
    )
    assert chat.ask("Kept?") == "Answer 1 to: Kept?"
    chat.waits_for("#banner", "The last change was not saved. This browser has no room left")
    chat.page.evaluate("IDBObjectStore.prototype.put = window.put; 0")
    chat.ask("Now?")
    chat.page.wait_for_selector("#banner", state="hidden")
    chat.page.reload()
    chat.waits_for(".text", "Answer 1 to: Now?")
