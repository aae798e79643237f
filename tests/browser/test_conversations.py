"""Conversations are found again and moved to another browser; files go with what is said."""

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.chat import Chat, soon
from tests.browser.conftest import WEB, add_parts

pytestmark = pytest.mark.slow


def test_a_search_finds_titles_and_what_was_said(chat: Chat, says: Any) -> None:
    says.answers["About cats"] = ["They purr."]
    chat.ask("About cats")
    chat.button("New chat").click()
    chat.ask("About dogs")
    for sought, titles in {
        "CATS": ["About cats"],
        "purr": ["About cats"],
        "about": ["About dogs", "About cats"],
    }.items():
        chat["#search"].fill(sought)
        assert chat.titles == titles
    chat["#search"].fill("birds")
    chat.waits_for("#conversations", "No conversation matches.")
    chat["#search"].fill("")
    assert len(chat.titles) == 2


def test_a_hit_shows_its_place_and_opens_there(chat: Chat, says: Any) -> None:
    says.answers["About cats"] = ["line\n\n" * 60, "They all **purr** loudly, ", "at night.\n\n", "line\n\n" * 60]
    chat.ask("About cats")
    chat.button("Regenerate").click()
    chat.waits_for(".version", "2 / 2")
    chat.ended()
    chat["button[title=Edit]"].first.click()
    chat[".editing textarea"].fill("Rather dogs")
    chat[".editing textarea"].press("Enter")
    assert chat.ended() == "Answer 1 to: Rather dogs"
    chat.button("New chat").click()
    chat.ask("Birds")
    chat["#search"].fill("LOUDLY")
    place = chat.waits_for("#conversations .place")
    assert "They all **purr** loudly, at night." in place.inner_text()
    assert place.locator("mark").inner_text() == "loudly" and chat["#conversations .place"].count() == 1
    place.click()
    found = chat.waits_for(".assistant p", "loudly")
    assert found.evaluate("(p) => { const { top } = p.getBoundingClientRect(); return top > 0 && top < innerHeight; }")
    assert chat.page.evaluate("CSS.highlights.get('found').size") == 1
    assert chat["#to-end"].is_visible() and chat[".version"].first.inner_text() == "1 / 2"
    chat["#search"].fill("to: rather")
    chat.button("Rather dogs").click()
    assert chat[".said"].inner_text() == "Rather dogs", "the title leads to the place, too"
    chat["#search"].fill("birds")
    assert chat.titles == ["Birds"] and chat["#conversations .place"].count() == 0, "the title is the place"


def test_a_hit_in_a_folded_question_unfolds_it(chat: Chat) -> None:
    chat.ask("first\n" + "word\n" * 100 + "needle")
    chat.button("New chat").click()
    chat["#search"].fill("needle")
    chat.waits_for("#conversations .place").click()
    chat.button("Show less").wait_for()


def test_a_draft_and_its_files_stay_with_their_conversation(chat: Chat, llm: Any) -> None:
    chat.ask("First")
    chat["#input"].fill("of the first")
    attach(chat, "a.txt", b"a")
    chat.waits_for("#attached li", "a.txt")
    chat.button("New chat").click()
    assert chat["#input"].input_value() == "" and chat["#attached li"].count() == 0
    chat["#input"].fill("of the second")
    chat.button("New chat").click()
    assert chat["#input"].input_value() == "of the second", "it is a new chat already"
    chat.button("First").click()
    assert chat["#input"].input_value() == "of the first"
    chat.button("New chat").click()
    assert chat["#input"].input_value() == "of the second"
    chat["#input"].press("Enter")
    chat.ended()
    assert llm.rendered[-1]["messages"] == [{"role": "user", "content": "of the second"}]
    assert chat["#input"].input_value() == ""
    chat.button("First").click()
    chat["#send"].click()
    chat.ended()
    assert llm.rendered[-1]["messages"][-1]["content"] == "of the first\n\na.txt:\n```\na\n```"
    chat.button("New chat").click()
    assert chat["#input"].input_value() == "" and chat.said == []


def test_a_file_that_is_attached_already_is_not_attached_again(chat: Chat) -> None:
    for _ in range(2):
        attach(chat, "a.txt", b"a")
        chat.waits_for("#attached li", "a.txt")
    chat.waits_for(".notice.shown", "Not attached: a.txt is attached already.")
    assert chat["#attached li"].count() == 1
    attach(chat, "a.txt", b"another folder's")
    soon(lambda: chat["#attached li"].count() == 2)


def test_an_edit_can_leave_a_file_out(chat: Chat, llm: Any) -> None:
    attach(chat, "a.txt", b"a")
    attach(chat, "b.txt", b"b")
    chat.waits_for("#attached li", "b.txt")
    chat["#send"].click()
    chat.ended()
    chat["button[title=Edit]"].click()
    chat.button("Remove a.txt").click()
    chat[".editing"].get_by_text("Send").click()
    chat.waits_for(".version", "2 / 2")
    chat.ended()
    assert llm.rendered[-1]["messages"][-1]["content"] == "b.txt:\n```\nb\n```"


def test_a_conversation_is_in_the_list_as_soon_as_it_begins(chat: Chat, says: Any) -> None:
    says.answers["Slow"] = ["One", 0.5, "two"]
    chat.send("Slow")
    chat.waits_for(".assistant .text", "One")
    assert chat.titles == ["Slow"] and chat["#conversations .running"].count() == 1
    chat.ended()


def export(chat: Chat) -> Any:
    chat.page.keyboard.press("Control+,")
    with chat.page.expect_download() as download:
        chat.button("Export").click()
    chat.page.keyboard.press("Escape")
    return json.loads(download.value.path().read_text())


def bring(chat: Chat, content: Any) -> str:
    """Import a file; what is then said."""
    text = content if isinstance(content, str) else json.dumps(content)
    chat.page.keyboard.press("Control+,")
    with chat.page.expect_file_chooser() as chooser:
        chat.button("Import…").click()
    chooser.value.set_files({"name": "a.json", "mimeType": "application/json", "buffer": text.encode()})
    said = said_in(chat, "#settings")
    chat.page.keyboard.press("Escape")
    chat.page.wait_for_selector("#settings", state="hidden")
    soon(lambda: chat[".notice.shown"].count() == 0)  # nor is it with the dialog's next opening
    return said


ON_TOP = """(notice) => {
    const { left, right, top, bottom } = notice.getBoundingClientRect();
    const found = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
    return top >= 0 && bottom <= innerHeight && notice.contains(found) && notice.closest("[role=status]") !== null;
}"""


def said_in(chat: Chat, place: str) -> str:
    """What a notice says there, which nothing covers, as a screen reader says it too."""
    notice = chat.waits_for(f"{place} .notice.shown")
    assert notice.evaluate(ON_TOP)
    assert notice.text_content() in chat[place].aria_snapshot().replace('\\"', '"')
    return str(notice.text_content())


def test_what_is_exported_is_imported_elsewhere_as_it_was(open_chat: Callable[..., Chat], says: Any) -> None:
    first = open_chat()
    first.ask("One")
    first.button("Regenerate").click()
    first.waits_for(".version", "2 / 2")
    first.ended()
    first.button("New chat").click()
    first.ask("Two")
    content = export(first)
    other = open_chat()
    assert bring(other, content) == "Imported 2 of 2."
    assert other.titles == ["Two", "One"]
    other.button("One").click()
    other.waits_for(".version", "2 / 2")
    assert other.said == ["One", "Answer 2 to: One"]
    assert export(other)["conversations"] != [] and other.ask("More") == "Answer 1 to: More"
    assert bring(other, content) == "Imported 0 of 2; this browser has the others already."
    other.page.reload()
    other.waits_for("#conversations .open", "Two")
    assert len(other.titles) == 2


def test_an_import_replaces_no_message(open_chat: Callable[..., Chat]) -> None:
    """Both sides went on, and whichever says the later time: neither is lost, and a second import adds nothing."""
    first, other = open_chat(), open_chat()
    first.ask("One")
    earlier = export(first)
    assert bring(other, earlier) == "Imported 1 of 1."
    first.ask("Here")
    other.button("One").click()
    other.ask("There")
    here = export(first)
    for later_ms in (0, 10**11, -(10**11)):
        here["conversations"][0]["changed"] += later_ms
        is_new = later_ms == 0
        said = "Imported 1 of 1, 1 of them beside what went on differently here."
        assert bring(other, here) == (said if is_new else "Imported 0 of 1; this browser has the others already.")
        assert other.titles == ["One", "One"] and other.said[2:] == ["There", "Answer 1 to: There"]
    texts = {tuple(node.get("text", "") for node in each["nodes"]) for each in export(other)["conversations"]}
    asked = ("", "One", "Answer 1 to: One")
    assert texts == {(*asked, "Here", "Answer 1 to: Here"), (*asked, "There", "Answer 1 to: There")}
    earlier["conversations"][0]["changed"] += 10**11
    assert bring(first, earlier) == "Imported 0 of 1; this browser has the others already."
    assert first.said[2:] == ["Here", "Answer 1 to: Here"]


def test_an_import_brings_more_messages_into_a_conversation(open_chat: Callable[..., Chat]) -> None:
    first, other = open_chat(), open_chat()
    first.ask("One")
    assert bring(other, export(first)) == "Imported 1 of 1."
    other.button("One").click()
    other.button("Edit").first.click()
    other[".editing textarea"].fill("half an ed")
    first.ask("Two")
    content = export(first)
    content["conversations"][0]["changed"] = 1  # a clock that is wrong
    assert bring(other, content) == "Imported 1 of 1."
    assert other.titles == ["One"] and other.said[1:] == ["Answer 1 to: One", "Two", "Answer 1 to: Two"]
    assert other[".editing textarea"].input_value() == "half an ed"


def rename(chat: Chat) -> None:
    chat.button("Rename One").click()
    chat["#conversations input"].fill("Renamed")
    chat["#conversations input"].press("Enter")


def set_temperature(chat: Chat) -> None:
    chat.page.keyboard.press("Control+,")
    chat["#s-temperature"].fill("1")
    chat.page.keyboard.press("Escape")


def choose(chat: Chat) -> None:
    chat.button("Previous version").click()


@pytest.mark.parametrize("change", [rename, set_temperature, choose])
def test_a_change_without_a_message_is_imported_too(
    open_chat: Callable[..., Chat], change: Callable[[Chat], None]
) -> None:
    first, other = open_chat(), open_chat()
    first.ask("One")
    first.button("Regenerate").click()
    first.waits_for(".version", "2 / 2")
    first.ended()
    assert bring(other, export(first)) == "Imported 1 of 1."
    change(first)
    content = export(first)
    assert bring(other, content) == "Imported 1 of 1."
    (made,), (given,) = export(other)["conversations"], content["conversations"]
    assert [made[name] for name in ("title", "settings")] == [given[name] for name in ("title", "settings")]
    assert [node["chosen"] for node in made["nodes"]] == [node["chosen"] for node in given["nodes"]]
    assert bring(other, content) == "Imported 0 of 1; this browser has the others already."


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("no JSON", "the file must be JSON"),
        ({}, "got another format"),
        (
            {"format": "jaxinfer-conversations", "version": 99, "conversations": []},
            "of version 1, got 99; import it with",
        ),
        ({"format": "jaxinfer-conversations", "conversations": []}, "of version 1, got nothing"),
        ({"format": "jaxinfer-conversations", "version": 1}, "must have a list of conversations"),
        (lambda c: c.update(id="../x"), "conversation 1 is damaged: id must be"),
        (lambda c: c.update(nodes=[]), "nodes must be messages"),
        (lambda c: c["nodes"][2].update(parent=2), "must follow an earlier one"),
        (lambda c: c["nodes"][2].update(parent="1"), "must follow an earlier one"),
        (
            lambda c: c["nodes"][1].update(role="system"),
            'message 1 must have the role user, got "system"; change it in the file',
        ),
        (lambda c: c["nodes"][1].update(role=None), "the role user, got null; change it in the file"),
        (lambda c: c["nodes"][1].update(text={"a": 1}), "message 1 must have a text, got an object"),
        (lambda c: c["nodes"][1].update(chosen=7), "chosen must be a version"),
        (lambda c: c["nodes"][1].update(files=[{"name": 1, "text": "a"}]), "files and calls must be texts"),
        (lambda c: c.update(nodes=[None, None]), "nodes must be messages, got null; export it again"),
        (lambda c: c["nodes"][2].update(calls=[None]), "files and calls must be texts in"),
        (lambda c: c["nodes"][2].update(stats={"tokens": "x"}), 'must be a number of at least 0, got "x"'),
    ],
    ids=range(17),
)
def test_a_damaged_file_changes_nothing_and_is_said_to_be_so(chat: Chat, damage: Any, said: str) -> None:
    chat.ask("Mine")
    content = export(chat)
    if callable(damage):
        damage(content["conversations"][0])
        content["conversations"][0]["changed"] += 1_000
    else:
        content = damage
    told = bring(chat, content)
    assert told.startswith("Nothing was imported: ") and said in told
    assert chat.titles == ["Mine"] and chat.said == ["Mine", "Answer 1 to: Mine"]


NO_JSON = [None, True, -1, 0.5, "x", [], {}, [None], {"a": None}]


def places_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of each value within a value of JSON."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(found for name, inner in pairs for found in places_in(inner, (*at, name)))]


def test_every_damage_is_refused_in_our_words_or_shown_as_text(browser: Any) -> None:
    """Every value of an export, replaced by values of every type."""
    stats = {"model": "m", "tokens": 3, "promptTokens": 2, "tokensPerS": 1.5, "preemptions": 1}
    asked = {"parent": 0, "role": "user", "text": "a", "chosen": 0, "files": [{"name": "a", "text": "b"}]}
    said = {"parent": 1, "role": "assistant", "text": "b", "chosen": 0, "thinking": "c", "thoughtMs": 5, "end": "stop"}
    said |= {"calls": [{"name": "f", "arguments": "{}"}], "stats": stats, "error": {"message": "d"}, "isEdited": True}
    one = {"id": "ab", "title": "t", "changed": 1, "settings": {"seed": "1"}, "nodes": [{"chosen": 0}, asked, said]}
    whole = {"format": "jaxinfer-conversations", "version": 1, "conversations": [one]}
    cases = []
    for *above, last in places_in(whole)[1:]:
        for wrong in NO_JSON:
            damaged = copy.deepcopy(whole)
            holder: Any = damaged
            for name in above:
                holder = holder[name]
            holder[last] = wrong
            cases.append(json.dumps(damaged))
    page = browser.new_page()
    add_parts(page)
    for name in ("tree", "view", "files", "message", "settings", "transfer"):
        page.add_script_tag(content=(WEB / f"{name}.js").read_text("utf-8"))
    outcomes = page.evaluate(
        """(cases) => cases.map((text) => {
            try {
                const [one] = imported(text);
                const page = { isRunning: () => false };
                const textOf = (_, at) => at && new MessageView(one, at, page).element.textContent;
                return (one?.nodes ?? []).map(textOf).join();
            } catch (error) { return `! ${error.message}`; }
        })""",
        cases,
    )
    page.close()
    refused = [each for each in outcomes if each.startswith("!")]
    assert [each for each in refused if not re.search(r" must .*, got .*; \w+ it", each)] == []
    assert [each for each in outcomes if re.search(r"NaN|undefined|\[object|function", each)] == []
    assert len(refused) > len(cases) / 2 and len(refused) < len(cases)


def test_an_imported_answer_without_an_end_is_not_said_to_be_cut(chat: Chat) -> None:
    chat.ask("Mine")
    content = export(chat)
    (conversation,) = content["conversations"]
    conversation["saved"] += 1_000
    del conversation["nodes"][2]["end"]
    assert bring(chat, content) == "Imported 1 of 1."
    chat.waits_for(".assistant .end", "The imported file does not say how this answer ended.")
    assert chat[".assistant .end.error"].count() == 0


def test_what_is_imported_is_text_like_all_else(chat: Chat) -> None:
    chat.ask("Mine")
    content = export(chat)
    evil = "<img src=x onerror=window.pwned=1>"
    (conversation,) = content["conversations"]
    conversation.update(id="ab", title=evil, changed=conversation["changed"] + 1_000, __proto__={"a": 1})
    conversation["nodes"][1].update(text=evil, files=[{"name": evil, "text": evil}], onclick=evil)
    conversation["nodes"][2].update(text=evil, calls=[{"name": evil, "arguments": evil}], stats={"model": evil})
    assert bring(chat, content) == "Imported 1 of 1."
    chat["#conversations .open"].first.click()
    chat.waits_for(".said", evil)
    assert chat["img"].count() == 0 and chat.page.evaluate("window.pwned") is None


def attach(chat: Chat, name: str, content: bytes, kind: str = "text/plain") -> None:
    chat["#file"].set_input_files({"name": name, "mimeType": kind, "buffer": content})


def test_text_files_go_with_a_message_and_stay_with_it(chat: Chat, llm: Any) -> None:
    attach(chat, "a.py", b"x = '```'\n")
    attach(chat, "b.txt", "héllo".encode())
    chat.waits_for("#attached li", "b.txt")
    chat.button("Remove b.txt").click()
    chat["#input"].fill("What is it?")
    chat["#input"].press("Enter")
    chat.ended()
    assert llm.rendered[-1]["messages"][-1]["content"] == "What is it?\n\na.py:\n````\nx = '```'\n````"
    assert chat["#attached li"].count() == 0
    assert chat[".user .chips li"].all_inner_texts() == ["a.py\n10 characters"]
    chat["button[title=Edit]"].first.click()
    chat[".editing textarea"].fill("And now?")
    chat[".editing"].get_by_text("Send").click()
    chat.waits_for(".version", "2 / 2")
    chat.ended()
    assert llm.rendered[-1]["messages"][-1]["content"].startswith("And now?\n\na.py:\n````")
    chat.button("New chat").click()
    attach(chat, "alone.md", b"# Title")
    chat.waits_for("#attached li", "alone.md")
    chat["#send"].click()
    chat.ended()
    assert llm.rendered[-1]["messages"][-1]["content"] == "alone.md:\n```\n# Title\n```"
    assert chat.titles[0] == "alone.md"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.PDF", b"a", 'a.PDF is a PDF, which this page cannot read; run pdftotext "a.PDF" and attach the .txt file'),
        ("no name for it", b"%PDF-1.7\n" + b"a" * 200_001, "no name for it is a PDF"),
        ("a.bin", b"a\0b", "a.bin must be text in UTF-8"),
        ("a.txt", b"\xff\xfe", "a.txt must be text in UTF-8"),
        ("large.txt", b"a" * 200_001, "large.txt must have at most 200 kB, got 201 kB"),
        ("none.txt", b"", "none.txt must hold text, got an empty file; attach one with text"),
        ("i.png", b"\x89PNG\r\n\x1a\n\0", "i.png must be text, images, audio and video are not supported"),
    ],
)
def test_what_cannot_be_attached_is_said_and_is_not_sent(chat: Chat, name: str, content: bytes, said: str) -> None:
    attach(chat, name, content)
    assert f"Not attached: {said}" in chat.waits_for(".notice span", said).inner_text()
    assert chat["#attached li"].count() == 0 and not chat["#send"].is_enabled()


def test_a_picture_in_svg_is_text(chat: Chat) -> None:
    attach(chat, "a.svg", b"<svg/>", "image/svg+xml")
    chat.waits_for("#attached li", "a.svg")


def test_a_pdf_that_chromium_prints_is_told_the_way_to_its_text(chat: Chat) -> None:
    attach(chat, "printed", chat.page.pdf(), "application/octet-stream")
    chat.waits_for(".notice span", 'printed is a PDF, which this page cannot read; run pdftotext "printed"')
    assert chat["#attached li"].count() == 0


@pytest.mark.parametrize("width", [390, 1440])
def test_a_notice_covers_no_attachment_and_ends_with_the_next(open_chat: Any, width: int) -> None:
    chat = open_chat(viewport={"width": width, "height": 844})
    for name in ("a.txt", "b.txt"):
        attach(chat, name, b"a")
    files = [("c.bin", b"\0"), ("d.txt", b"")]
    chat["#file"].set_input_files([{"name": name, "mimeType": "", "buffer": content} for name, content in files])
    said = chat.waits_for(".notice.shown", "c.bin must be text in UTF-8")
    assert "d.txt must hold text" in said.inner_text(), "each that failed is named"
    chat.page.wait_for_timeout(300)
    notice, chips, log = (chat[at].bounding_box() for at in ("main .notice", "#attached", "main"))
    assert notice["y"] + notice["height"] <= chips["y"]
    assert abs(notice["x"] + notice["width"] / 2 - log["x"] - log["width"] / 2) < 10
    attach(chat, "e.txt", b"a")
    chat.waits_for("#attached li", "e.txt")
    assert chat[".notice.shown"].count() == 0


def test_what_is_said_while_a_dialog_is_open_is_said_in_it(open_chat: Any) -> None:
    """A server that is gone, an address that is none, a page that cannot be saved: on a phone too."""
    chat = open_chat(viewport={"width": 390, "height": 700})
    chat.page.keyboard.press("Control+,")
    assert "4,000,000 tokens of context" in chat["#server-facts"].inner_text()
    chat.page.route(f"{chat.server}/**", lambda route: route.abort("connectionrefused"))
    gone = f"No answer from {chat.server}. Is the server running?"
    chat.button("Save this page").click()
    assert said_in(chat, "#settings") == f"This page was not saved: {gone}"
    chat.page.unroute(f"{chat.server}/**")
    chat.page.route(f"{chat.server}/v1/models", lambda route: route.abort("connectionrefused"))
    chat.button("API key…").click()
    chat["#key"].press("Enter")
    soon(lambda: said_in(chat, "#settings") == gone)  # instead of the words before, which end with these
    chat["#s-address"].evaluate("(field) => { field.value = 'nowhere'; field.dispatchEvent(new Event('change')); }")
    soon(lambda: "must be a URL such as http://127.0.0.1:8000, got nowhere" in said_in(chat, "#settings"))


@pytest.mark.parametrize("goes_on", ["sends", "opens another", "opens a new one"])
def test_a_refused_attachment_is_told_until_the_user_goes_on(chat: Chat, says: Any, goes_on: str) -> None:
    chat.ask("First")
    chat.button("New chat").click()
    chat.ask("Second")
    attach(chat, "a.bin", b"\0")
    chat.waits_for(".notice.shown", "Not attached: a.bin")
    if goes_on == "sends":
        says.answers["Go"] = [30.0]
        chat.send("Go")
    else:
        chat.button("First" if goes_on == "opens another" else "New chat").click()
    soon(lambda: chat[".notice.shown"].count() == 0)


def test_a_notice_with_something_to_do_stays_when_the_user_goes_on(chat: Chat) -> None:
    chat.ask("Mine")
    chat.button("Delete Mine").click()
    chat.waits_for(".notice.shown", "Deleted")
    chat.ask("More")
    chat.button("Undo").click()
    chat.waits_for("#conversations .open", "Mine")
    assert chat[".notice.shown"].count() == 0


def test_at_most_ten_files_go_with_a_message(chat: Chat) -> None:
    chat["#file"].set_input_files([{"name": f"{n}.txt", "mimeType": "text/plain", "buffer": b"a"} for n in range(11)])
    chat.waits_for(".notice span", "a message may have at most 10 files")
    assert chat["#attached li"].count() == 10
