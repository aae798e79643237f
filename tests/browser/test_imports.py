"""What an import takes can be opened, answered again, edited, continued and exported; by generation."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.chat import Chat, soon
from tests.browser.conftest import WEB, add_parts
from tests.browser.test_conversations import NO_JSON, bring, export, places_in

pytestmark = pytest.mark.slow

USER = {"role": "user", "text": "a", "chosen": 0, "files": [{"name": "a", "text": "b"}]}
ANSWER = {"role": "assistant", "text": "b", "chosen": 0, "thinking": "c", "thoughtMs": 5, "end": "length"}
TEXTS = ["", " ", "\n", "$x^2$", "<b>", "x" * 2_000, "`" * 50, "\u202e", "\0"]
ODD_SETTINGS = ["9", "-9", "1e99", "0x10", "banana", "", " ", "NaN", "on", "1"]
ODD_ENDS = ["", "stop", "constructor", "edited", "tool_calls", "unknown"]

# Presses each button of each message of the conversation that is shown, and tells what it pressed.
PRESS = """async () => {
    const rest = () => new Promise((resolve) => setTimeout(resolve, 0));
    const log = document.querySelector("#log"), pressed = [];
    const idle = async () => { do await rest(); while (log.getAttribute("aria-busy") !== "false"); };
    for (const name of ["Regenerate", "Try again", "Continue", "Edit", "Edit the answer", "Copy", "Previous version"]) {
        await idle();
        const buttons = [...document.querySelectorAll(".message button:not(:disabled)")];
        const button = buttons.findLast((each) => each.title === name || each.textContent === name);
        if (!button) continue;
        pressed.push(name);
        button.click();
        await idle();
        document.querySelector(".editing .main")?.click();
    }
    await idle();
    const input = document.querySelector("#input");
    input.value = "More";
    input.dispatchEvent(new Event("input"));
    document.querySelector("#send").click();
    await idle();
    if (input.value === "More") pressed.push("not sent");
    return pressed;
}"""


def conversation(nodes: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "id": "ab",
        "title": "t",
        "changed": 1,
        "settings": {"seed": "1"},
        "nodes": [{"chosen": 0}, *nodes],
    } | fields


def whole() -> dict[str, Any]:
    stats = {"model": "m", "tokens": 3, "promptTokens": 2, "tokensPerS": 1.5, "preemptions": 1}
    answer = ANSWER | {"stats": stats, "calls": [{"name": "f", "arguments": "{}"}]}
    failed = {"parent": 1, "role": "assistant", "text": "", "chosen": 0, "error": {"message": "d", "tooLong": ""}}
    nodes = [USER | {"parent": 0}, answer | {"parent": 1}, failed, USER | {"parent": 2}, ANSWER | {"parent": 4}]
    return copy.deepcopy(conversation(nodes))


def replaced() -> list[Any]:
    """Every value of an export, replaced by values of every type."""
    made = []
    for *above, last in places_in(whole())[1:]:
        for wrong in [*NO_JSON, *TEXTS, 10**30]:
            damaged = whole()
            holder: Any = damaged
            for name in above:
                holder = holder[name]
            holder[last] = wrong
            made.append(damaged)
    return made


def grown(chance: random.Random) -> dict[str, Any]:
    """A tree of messages, most of them where they belong."""
    nodes: list[dict[str, Any]] = [{"chosen": 0}]
    for number in range(1, chance.randrange(2, 8)):
        parent = chance.choice([number - 1, number - 1, number - 1, chance.randrange(number)])
        due = ANSWER if nodes[parent].get("role") == "user" else USER
        node = copy.deepcopy(chance.choice([due] * 9 + [USER, ANSWER])) | {"parent": parent}
        if chance.random() < 0.2:
            node["text"] = chance.choice(TEXTS)
        if chance.random() < 0.2:
            node.pop("files", None)
        if chance.random() < 0.2:
            node["end"] = chance.choice(ODD_ENDS)
        if chance.random() < 0.1:
            node["chosen"] = chance.randrange(3)
        nodes.append(node)
    fields = ["temperature", "max_tokens", "thinking", "stop", "seed", "top_k", "system", "other"]
    settings = {chance.choice(fields): chance.choice(ODD_SETTINGS)}
    return conversation(nodes[1:], settings=settings) | {"nodes": nodes}


def accepted(browser: Any, cases: list[Any]) -> list[dict[str, Any]]:
    """The cases that an import takes, each once by what it makes of them."""
    page = browser.new_page()
    add_parts(page)
    for name in ("tree", "view", "files", "message", "settings", "transfer"):
        page.add_script_tag(content=(WEB / f"{name}.js").read_text("utf-8"))
    texts = [json.dumps({"format": "jaxinfer-conversations", "version": 1, "conversations": [case]}) for case in cases]
    taken = page.evaluate(
        "(texts) => texts.map((text) => { try { return JSON.stringify(imported(text)[0]); } catch { return null; } })",
        texts,
    )
    page.close()
    first = {made: case for case, made in zip(cases, taken, strict=True) if made}
    return list(first.values())


@pytest.mark.parametrize("kind", ["replaced", "grown"])
def test_what_is_imported_allows_every_button(browser: Any, open_chat: Callable[..., Chat], kind: str) -> None:
    chance = random.Random(35)
    cases = replaced() if kind == "replaced" else [grown(chance) for _ in range(1_500)]
    taken = accepted(browser, cases)
    assert 40 < len(taken) < len(cases) / 2
    chosen = chance.sample(taken, min(len(taken), 40))
    content = {"format": "jaxinfer-conversations", "version": 1}
    content["conversations"] = [
        case | {"id": f"{number:x}", "changed": number, "title": f"Case {number}"} for number, case in enumerate(chosen)
    ]
    chat = open_chat()
    assert bring(chat, content) == f"Imported {len(chosen)} of {len(chosen)}."
    pressed: set[str] = set()
    for number in range(len(chosen)):
        chat.page.get_by_role("button", name=f"Case {number}", exact=True).evaluate("(each) => each.click()")
        done = set(chat.page.evaluate(PRESS))
        assert chat.failures == [], chosen[number]
        assert "not sent" not in done, chosen[number]
        assert done & {"Regenerate", "Try again"}, chosen[number]
        pressed |= done
    assert pressed >= {"Regenerate", "Edit", "Edit the answer", "Continue", "Copy"}
    other = open_chat()
    again = export(chat)
    assert len(again["conversations"]) == len(chosen)
    assert bring(other, again) == f"Imported {len(chosen)} of {len(chosen)}."


def test_an_export_is_without_settings_that_are_wrong_and_says_so(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    chat.ask("Mine")
    chat.page.keyboard.press("Control+,")
    chat["#s-temperature"].fill("9")
    chat["#s-top_p"].fill("0.5")
    chat.page.keyboard.press("Escape")
    chat.page.keyboard.press("Control+,")
    with chat.page.expect_download() as download:
        chat.button("Export").click()
    chat.waits_for(".notice.shown", "The file is without the wrong settings of “Mine”.")
    content = json.loads(download.value.path().read_text())
    assert content["conversations"][0]["settings"] == {"top_p": "0.5"}
    assert bring(open_chat(), content) == "Imported 1 of 1."


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda c: c["nodes"].__delitem__(slice(1, 2)) or c["nodes"][1].update(parent=0), "the role user, got"),
        (lambda c: c.update(title=" "), 'title must be a text with more than spaces, got " "'),
        (lambda c: c.update(changed=1e300), "changed must be a time in milliseconds, got 1e+300"),
        (lambda c: c["nodes"].pop(), "message 1 must have an answer, got none"),
        (lambda c: c["nodes"][1].update(text=" "), "message 1 must have a text or a file, got none"),
        (lambda c: c["settings"].update(thinking="banana"), "Thinking must be on or off, got banana; change it"),
        (lambda c: c["settings"].update(temperature="9"), "Temperature must be a number from 0 to 2, got 9; change it"),
        (lambda c: c["settings"].update(stop="a" * 1025), "Stop at must have at most 1,024 characters, got 1,025"),
        (lambda c: c["settings"].update(seed=1), "seed of the settings must be a text, got 1"),
    ],
    ids=range(9),
)
def test_what_no_page_could_have_made_is_refused(chat: Chat, damage: Callable[[Any], Any], said: str) -> None:
    chat.ask("Mine")
    content = export(chat)
    content["conversations"][0]["changed"] += 1_000
    damage(content["conversations"][0])
    told = bring(chat, content)
    assert told.startswith("Nothing was imported: conversation 1 is damaged: ") and said in told
    assert chat.said == ["Mine", "Answer 1 to: Mine"]


def test_conversations_of_one_id_are_refused(chat: Chat) -> None:
    chat.ask("Mine")
    content = export(chat)
    content["conversations"] *= 2
    told = bring(chat, content)
    assert "conversation 2 is damaged: it must have an id of its own, got" in told


# What an older page could keep: it took the name of a file for a title, whatever it was.
KEEP_TITLES = """(titles) => new Promise((resolve) => {
    indexedDB.open("jaxinfer").onsuccess = ({ target }) => {
        const transaction = target.result.transaction("conversations", "readwrite");
        const table = transaction.objectStore("conversations");
        table.getAll().onsuccess = ({ target: { result: [known] } }) => titles.forEach(
            (title, i) => table.put({ ...known, id: (i + 16).toString(16), title, isNamed: true }));
        transaction.oncomplete = resolve;
    };
})"""
TITLES = ["", " ", "\n", "\t \u2003", "\u00a0", "123", "...", "\u200b", " a ", "\U0001f600", "\0", "x" * 5_000]


def test_an_export_can_be_imported_whatever_the_titles_are(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    chat.ask("Mine")
    chat.page.evaluate(KEEP_TITLES, TITLES)
    chat.page.reload()
    soon(lambda: len(chat.titles) > len(TITLES))
    content = export(chat)
    found = {each["id"]: each["title"] for each in content["conversations"]}
    blank = "\ufeff \n\t\u2003\u00a0"
    assert [found[f"{number + 16:x}"] for number in range(len(TITLES))] == [
        title if title.strip(blank) else "Untitled" for title in TITLES
    ]
    count = len(TITLES) + 1
    assert bring(open_chat(), content) == f"Imported {count} of {count}."
