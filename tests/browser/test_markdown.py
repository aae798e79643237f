"""markdown.js and what it uses: pieces end as what is written at once, in time that grows with it."""

import random
import re
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PIECES = (
    *("# ", "## a", "- ", "* ", "1. ", "2) ", "> ", "---", "***", "**", "*", "_", "__", "`", "``", "~~", "\\", "+ "),
    *(
        "[",
        "](",
        "](https://a.example)",
        ")",
        "![",
        "<",
        "<br>",
        ">",
        "https://b.example/c_(d).",
        "<https://e.example>",
    ),
    *("\n", "\n", "\n\n", "\n   ", "\n    ", "\n\t", " ", "a b c", "é", "漢字", "&amp;", "\u2028", "<think>", "</p>"),
    *("1", "=", "- [ ] x"),
    *("$", "$$", "\\(", "\\)", "\\[", "\\]", "x^2", "\\,", "\\begin{align}", "\\end{align}"),
)
# a fence's first line, cells beyond the head's
HIDING = ("| $|x|$ |", "```", "```py", "~~~", "|", "| a | b |", "|---|--:|", "\\|")


def html(page: Any, text: str) -> str:
    """As it is shown, without the lines that markup is written in."""
    return str(page.evaluate("(text) => whole(text).innerHTML.replace(/(?<=>)\\n|\\n(?=<)/g, '')", text))


def shown_link(address: str) -> str:
    return f'<a href="{address}" title="{address}" target="_blank" rel="noopener noreferrer">{address}</a>'


TABLE = (
    '<div class="table" tabindex="0"><table><thead><tr><th>a</th><th class="center">b</th></tr></thead>'
    '<tbody><tr><td>c</td><td class="center">d</td></tr></tbody></table></div>'
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "<p>a<br>b</p>"),
        ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
        ("***a***", "<p><em><strong>a</strong></em></p>"),
        ("2 * 3 * 4 and snake_case_name", "<p>2 * 3 * 4 and snake_case_name</p>"),
        ("`a *b*` ``c`d``", "<p><code>a *b*</code> <code>c`d</code></p>"),
        ("\\*a\\* \\`b\\`", "<p>*a* `b`</p>"),
        ("- a\n- b\n\ntext", "<ul><li>a</li><li>b</li></ul><p>text</p>"),
        ("1. a\n   - b\n     - c\n2. d", "<ol><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ol>"),
        ("- [x] done\n- [ ] not", "<ul><li>☑ done</li><li>☐ not</li></ul>"),
        ("in\n1986. was", "<p>in<br>1986. was</p>"),
        ("a | b", "<p>a | b</p>"),
        ("```a``` b", "<p><code>a</code> b</p>"),
        ("## a ##\nb", '<h2 aria-level="2">a</h2><p>b</p>'),
        ("#hashtag", "<p>#hashtag</p>"),
        ("a\n---\nb", "<p>a</p><hr><p>b</p>"),
        ("> a\n>> b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
        ("a **b", "<p>a **b</p>"),
        ("[a](javascript:b) [c](d e)", "<p>[a](javascript:b) [c](d e)</p>"),
        ("[a]: https://a.example\n[a]", "<p>[a]: URL<br>[a]</p>".replace("URL", shown_link("https://a.example"))),
        ("a<br>b <b>c</b>", "<p>a<br>b &lt;b&gt;c&lt;/b&gt;</p>"),
        ("|a|b|\n|-|:-:|\n|c|d|", TABLE),
    ],
)
def test_what_is_written_is_what_it_means(page, text, shown):
    assert html(page, text) == shown


def test_bold_text_and_code_are_so_while_they_are_written(page):
    begun = "(text) => { const at = whole(''); new MarkdownView(at).update(text, true); return at.innerHTML; }"
    assert page.evaluate(begun, "a **b c") == "<p>a <strong>b c</strong></p>"
    assert page.evaluate(begun, "a `b c") == "<p>a <code>b c</code></p>"
    assert page.evaluate(begun, "a\n\n``") == "<p>a</p>"


def test_a_settled_block_keeps_its_element_and_code_only_grows(page):
    kept = """() => {
        const at = document.createElement("div"), view = new MarkdownView(at);
        view.update("first\\n\\nsecond", true);
        const first = at.firstChild;
        view.update("first\\n\\nsecond\\n\\n```js\\nlet a", true);
        const code = at.querySelector("code");
        view.update("first\\n\\nsecond\\n\\n```js\\nlet a = 1\\nlet b\\n```\\nlast", true);
        return [at.firstChild === first, at.querySelector("code") === code, code.textContent, at.lastChild.textContent];
    }"""
    assert page.evaluate(kept) == [True, True, "let a = 1\nlet b\n", "last"]


def test_headings_of_an_answer_follow_the_page_s_in_order(page):
    """Whatever levels are written, in quotes and lists too: the first is 2, and none is deeper by more than one."""
    chance = random.Random(9)
    texts = ["### a", "### a\n\n#### b\n\n## c\n\n#### d\n\n# e", "> #### a\n\n- ## b\n- ##### c"]
    for _ in range(200):
        marks = chance.choices(range(1, 7), k=chance.randint(1, 12))
        texts.append("".join(chance.choice(("", "> ", "- ", "text\n\n")) + "#" * n + " a\n\n" for n in marks))
    levels = (
        "(texts) => texts.map((text) => [...whole(text).querySelectorAll('[aria-level]')].map((h) => +h.ariaLevel))"
    )
    found = page.evaluate(levels, texts)
    assert found[:3] == [[2], [2, 3, 2, 3, 2], [2, 2, 3]]
    for text, shown in zip(texts, found, strict=True):
        assert text in texts[:3] or len(shown) == text.count("# a")
        assert shown[0] == 2 and all(2 <= after <= before + 1 for before, after in zip(shown, shown[1:], strict=False))


def test_pieces_end_as_the_whole(page):
    """300 texts made of what Markdown is made of, each cut in its own way."""
    chance = random.Random(17)
    cases = []
    for _ in range(300):
        text = "".join(chance.choices(PIECES + HIDING, k=chance.randint(1, 40)))
        cases.append([text, sorted(chance.sample(range(len(text) + 1), k=min(len(text), chance.randint(1, 25))))])
    different = page.evaluate(
        "(cases) => cases.filter(([text, cuts]) => pieces(text, cuts).innerHTML !== whole(text).innerHTML)", cases
    )
    assert different == []


def test_no_word_of_a_text_is_lost(page):
    """Whatever the marks around them, words stay, in their order."""
    chance = random.Random(3)
    for _ in range(150):
        words = [f"w{n}w" for n in range(chance.randint(1, 12))]
        text = "".join("".join(chance.choices(PIECES, k=3)) + word for word in words)
        if "```" in text or "~~~" in text:  # put together by chance
            continue
        shown = page.evaluate("(text) => whole(text).textContent", text)
        assert re.findall(r"w\d+w", shown) == words, text


HARD = {
    "emphasis": "*a _b **c ",
    "closers": "a* b** c_ ",
    "brackets": "[",
    "images": "![a](",
    "targets": "[a](<b ",
    "titles": '[a](b "',
    "backticks": "`a ``b ```c\n",
    "quotes": ">",
    "lists": "- ",
    "nested": "- a\n  - b\n    - c\n",
    "table": "| a | b |\n|---|---|\n",
    "delimiters": "|-",
    "urls": "https://a.example/b",
    "angles": "<https://",
    "hashes": "# # ",
    "spaces": "a" + " " * 50,
    "rules": "* * ",
    "escapes": "\\*",
    "strikes": "~~a ",
    "dollars": "$a $",
    "prices": "$5 ",
    "parentheses": "\\(a ",
    "brackets of TeX": "\\[a\n",
    "formulas": "some words and $x^2$ ",
    "formulas before code": "\\(a `",
    "prices before code": "$5 `$a` ",
    "TeX's quotes": "\\({``a''} ",
    "formulas in a table": "| $|x|$ | \\(a|b ` | $5 ",
    "environments": "\\begin{align}\n",
}


@pytest.mark.parametrize("name", HARD)
def test_time_grows_with_the_text_and_no_faster(page, name):
    """Four times the text in less than ten times the time, best of three; and no nesting that would end the tab."""
    unit = HARD[name]
    measure = "([unit, n]) => { const t = performance.now(); whole(unit.repeat(n)); return performance.now() - t }"
    count = 40_000 // len(unit)
    page.evaluate(measure, [unit, count])
    ratios = []
    for _ in range(3):
        small, large = (page.evaluate(measure, [unit, count * factor]) for factor in (1, 4))
        ratios.append(large / max(small, 20.0))
    assert min(ratios) < 10
    assert page.evaluate("([unit, n]) => depth(whole(unit.repeat(n)))", [unit, count]) < 100


def test_emphasis_that_would_nest_without_end_stops(page):
    nested = "(n) => { const t = performance.now(); return [depth(whole(TEXT)), performance.now() - t] }"
    nested = nested.replace("TEXT", "'*a '.repeat(n) + 'a* '.repeat(n)")
    depth, took_ms = page.evaluate(nested, 20_000)
    assert depth < 50 and took_ms < 5_000


def test_blocks_that_nest_deeper_than_they_are_read_are_shown_as_written(page):
    text = "> " * 150 + "word\n\nnext"
    shown = page.evaluate("(text) => whole(text).querySelector('code').textContent", text)
    assert shown.rstrip() == text.removesuffix("\n\nnext").rstrip()
