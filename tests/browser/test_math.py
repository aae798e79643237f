"""Mathematics and code in answers: 40 formulas and 20 blocks of code, what is a formula, and what is left as it was."""

import random
import re
import string
from typing import Any

import pytest

from tests.browser.chat import Chat, soon

pytestmark = pytest.mark.slow

FORMULAS = r"""
a^2 + b^2 = c^2
x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}
\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}
\sum_{n=1}^{\infty} \frac{1}{n^2} = \frac{\pi^2}{6}
\prod_{p} \left(1 - p^{-s}\right)^{-1} = \zeta(s)
\lim_{x \to 0} \frac{\sin x}{x} = 1
e^{i\pi} + 1 = 0
\nabla \times \mathbf{E} = -\frac{\partial \mathbf{B}}{\partial t}
i\hbar \frac{\partial}{\partial t}\Psi = \hat{H}\Psi
\begin{pmatrix} a & b \\ c & d \end{pmatrix}^{-1} = \frac{1}{ad-bc}\begin{pmatrix} d & -b \\ -c & a \end{pmatrix}
f(x) = \begin{cases} x^2 & x \ge 0 \\ -x & \text{otherwise} \end{cases}
\begin{aligned} (x+y)^2 &= x^2 + 2xy + y^2 \\ &\geq 4xy \end{aligned}
\binom{n}{k} = \frac{n!}{k!(n-k)!}
\forall \varepsilon > 0\ \exists \delta > 0
A \cap B \subseteq A \cup B
\mathbb{R} \setminus \mathbb{Q} \neq \emptyset
\mathcal{L}(\theta) = -\sum_i y_i \log \hat{y}_i
P(A \mid B) = \frac{P(B \mid A)\,P(A)}{P(B)}
\operatorname{softmax}(z)_i = \frac{e^{z_i}}{\sum_j e^{z_j}}
\mathrm{Attention}(Q,K,V) = \mathrm{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right)V
\sqrt[3]{27} = 3
\overline{z} = x - iy
\vec{v} \cdot \vec{w} = |v||w|\cos\theta
\left\lfloor \frac{n}{2} \right\rfloor + \left\lceil \frac{n}{2} \right\rceil = n
\oint_C \mathbf{F} \cdot d\mathbf{r} = \iint_S (\nabla \times \mathbf{F}) \cdot d\mathbf{S}
x \equiv y \pmod{n}
\underbrace{1 + 1 + \cdots + 1}_{n} = n
\overset{!}{=} \quad \stackrel{\text{def}}{=}
\boxed{x = 42}
\cancel{x} + \sout{y}
\alpha \beta \gamma \delta \epsilon \zeta \eta \theta \Gamma \Delta \Omega
A \xrightarrow{f} B \xleftarrow[g]{} C
\color{red} x + \textcolor{blue}{y}
\begin{array}{c|c} a & b \\ \hline c & d \end{array}
\tfrac12 \dfrac{1}{2} \cfrac{1}{1+\cfrac{1}{x}}
{}_2F_1(a,b;c;z)
\left. \frac{df}{dx} \right|_{x=0}
\pmb{x} + \boldsymbol{y} + \mathfrak{g} + \mathscr{F} + \mathsf{T} + \mathtt{code}
\mathrm{2H_2 + O_2 \rightarrow 2H_2O}
\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix} = -2 \tag{1}
""".strip().splitlines()
CODE = {
    "python": "def f(n: int) -> str:\n    return f'{n}'  # text",
    "javascript": "const f = async (x) => `${await x}`; // text",
    "typescript": "interface A { readonly b?: string }",
    "c": 'int main(void) { return printf("%d\\n", 3); }',
    "cpp": "template <class T> T f(const T& x) { return x; }",
    "java": "public class A { private final int b = 1; }",
    "csharp": "public record A(int B) { }",
    "go": 'func main() { fmt.Println("a") }',
    "rust": "fn main() -> Result<(), E> { let x = 1u8; Ok(()) }",
    "bash": 'for f in *.txt; do echo "$f"; done # text',
    "json": '{"a": [1, true, null]}',
    "yaml": "a:\n  - b: 1 # text",
    "sql": "SELECT a, COUNT(*) FROM b WHERE c = 'd' GROUP BY a;",
    "html": "<a href=\"b\" class='c'>&amp;</a>",
    "css": ".a > b { color: #fff; }",
    "ruby": 'def a(b) = puts "#{b}"',
    "kotlin": 'fun main() { val a = "$b" }',
    "diff": "- a\n+ b",
    "makefile": "a: b\n\t$(CC) -o $@ $<",
    "text": "no <b>language</b> & no colours",
}


def test_forty_formulas_and_twenty_blocks_of_code_are_shown_as_such(chat: Chat, says: Any) -> None:
    assert (len(FORMULAS), len(CODE)) == (40, 20)
    formulas = [
        rf"{n}. Inline \({tex}\):" + f"\n\n\\[\n{tex}\n\\]\n\n" for n, tex in enumerate(FORMULAS) if "tag" not in tex
    ]
    formulas.append(f"$$\n{FORMULAS[-1]}\n$$\n\n")
    blocks = [f"```{language}\n{code}\n```\n\n" for language, code in CODE.items()]
    text = "".join(formulas + blocks)
    says.answers["Show"] = [text[at : at + 50] for at in range(0, len(text), 50)]
    chat.ask("Show")
    assert chat[".assistant .tex"].all_inner_texts() == []
    assert chat[".assistant .math:not(.display) > math"].count() == 39
    assert chat[".assistant .math.display > math"].count() == 40
    assert chat[".assistant merror, .assistant .temml-error"].count() == 0
    boxes = chat[".assistant math"].evaluate_all("(all) => all.map((m) => m.getBoundingClientRect().height)")
    assert all(height > 5 for height in boxes)
    assert chat[".code-head > span"].all_inner_texts() == list(CODE)
    shown = chat[".code code"].evaluate_all("(all) => all.map((code) => code.textContent)")
    assert shown == [f"{code}\n" for code in CODE.values()]
    coloured = chat[".code"].evaluate_all("(all) => all.map((c) => c.querySelectorAll('[class^=hljs-]').length > 0)")
    assert coloured == [language != "text" for language in CODE]


@pytest.mark.parametrize("width", [390, 1440])
def test_a_formula_wider_than_its_column_is_scrolled_in_its_own_box(open_chat: Any, says: Any, width: int) -> None:
    chat = open_chat(viewport={"width": width, "height": 844})
    wide = "+".join(f"x_{{{n}}}" for n in range(80))
    said = f"So \\({wide}\\), and $x$.\n\n\\[{wide}\\]\n\n- $${wide}$$ in a list, with $y$\n\n\\[z\\]"
    says.answers["Show"] = [said]
    chat.ask("Show")
    column = chat["#scroller"]
    assert column.evaluate("(all) => all.scrollWidth <= all.clientWidth")
    boxes = chat[".assistant .math"]
    is_wide = boxes.evaluate_all("(all) => all.map((box) => box.scrollWidth > box.clientWidth)")
    assert is_wide == [True, False, True, True, False, False]
    soon(lambda: boxes.evaluate_all("(all) => all.map((box) => box.tabIndex === 0)") == is_wide)
    hidden = "(box) => { box.scrollLeft = 99999; return box.scrollWidth - box.clientWidth - box.scrollLeft; }"
    assert boxes.first.evaluate(hidden) <= 1, "its end can be seen"


@pytest.mark.parametrize("tex", ["x", "\\frac{a}{b}", "\\sum_{n=1}^{9} n", "\\int_0^\\infty", "y_{j_k}"])
def test_a_formula_in_a_line_stands_on_the_line_of_its_text(chat: Chat, says: Any, tex: str) -> None:
    says.answers["Show"] = [f"x \\({tex}\\) x"]
    chat.ask("Show")
    tops = """(box) => {
        const top = () => box.firstChild.getBoundingClientRect().top - box.parentNode.getBoundingClientRect().top;
        const scrolled = top();
        box.style.display = "inline";
        return [scrolled, top(), box.scrollHeight - box.clientHeight];
    }"""
    scrolled, plain, cut = chat[".assistant .math"].evaluate(tops)
    assert abs(scrolled - plain) <= 1 and cut <= 0


MATH = (
    "(text) => [...whole(text).querySelectorAll('.math')].map((m) => [m.className, m.querySelector('math') !== null])"
)
INLINE, DISPLAY = ["math", True], ["math display", True]


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        (r"\(a^2\), \[x\] and \(x^2\,dx\)", [INLINE, DISPLAY, INLINE]),
        ("$x$ and $$y$$", [INLINE, DISPLAY]),
        ("\\[\na *b* c_1 **d**\n\\]", [DISPLAY]),
        ("$$\na\n\n= b\n$$", [DISPLAY]),
        ("$$a$$", [DISPLAY]),
        ("\\begin{align}\na &= b \\\\\n&= c\n\\end{align}", [DISPLAY]),
        ("1. so\n   \\[\n   x\n   \\]\n2. then \\(y\\)", [DISPLAY, INLINE]),
        ("> \\[\n> x\n> \\]", [DISPLAY]),
        ("text\n\\[\nx\n\\]\nmore", [DISPLAY]),
        ("| a |\n|---|\n| \\(x\\) |", [INLINE]),
        ("| a | b |\n|---|---|\n| 3 | $|x|$ |", [INLINE]),
        ("| $|x|$ | b |\n|---|---|\n| $$a|b$$ | \\(P(A|B)\\) |", [INLINE, DISPLAY, INLINE]),
        ("**so $x$**", [INLINE]),
        ("$5 and $10, $5-$10 and $ x $", []),
        ("`$x$` and `\\(x\\)`\n\n```\n\\[x\\]\n```", []),
        (r"\$x$ and \\(y", []),
        ("The fee is $10. Set `$HOME` first.", []),
        ("The licence costs $20 (use `$KEY` to pay).", []),
        ("`$a` then $5 and `$b`", []),
        ("Write \\( before `\\)`, \\[ before `\\]` and $$ before `$$`.", []),
        ("$$ begins a formula:\n\n```\n$$\nx\n$$\n```\n\nand $y$", [INLINE]),
        ("$\\text{say ``yes''}$ and \\(\\text{``no''}\\)", [INLINE, INLINE]),
    ],
)
def test_what_is_between_the_marks_is_a_formula_and_nothing_else_is(page: Any, text: str, formulas: list[Any]) -> None:
    assert page.evaluate(MATH, text) == formulas


def in_code(text: str) -> str:
    """As Markdown writes code: between more backticks than the text has in a row."""
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{ticks} {text} {ticks}" if text[0] == "`" or text[-1] == "`" else f"{ticks}{text}{ticks}"


def test_prices_code_escapes_and_formulas_of_one_line_stay_what_each_is(page: Any) -> None:
    """800 lines of pieces in any order: code is shown as code, formulas as formulas, and all else as text."""
    chance = random.Random(35)
    codes = ["$HOME", "$KEY", "$a", "$$", "\\(", "\\)", "\\[x\\]", "$x$", "a`$b", "``$c``", "{$d}", "x"]
    formulas = [("$", "x", "$"), ("$", "\\frac{a}{b}", "$"), ("\\(", "x^2", "\\)"), ("\\(", "\\text{``a''}", "\\)")]
    cases = []
    for _ in range(800):
        line, plain, code, tex = ["so"], ["so"], [], []
        for kind in chance.choices(("price", "code", "escaped", "formula", "word"), k=chance.randint(1, 9)):
            if kind == "code":
                code.append(chance.choice(codes))
                line.append(in_code(code[-1]))
            elif kind == "formula":
                formula = chance.choice(formulas)
                tex.append(formula[1])
                line.append("".join(formula))
            else:
                said = {"price": f"${chance.randint(1, 99)}.", "escaped": r"\$KEY", "word": "(then)"}[kind]
                line.append(said)
                plain.append(said.removeprefix("\\"))
        cases.append([" ".join(line), plain, code, tex])
    wrong = page.evaluate(
        """(cases) => cases.flatMap(([line, ...wanted]) => {
            const at = whole(line);
            const taken = (what, of) => [...at.querySelectorAll(what)].map((node) => [node.remove(), of(node)][1]);
            const tex = taken(".math", () => 1).length, code = taken("code", (node) => node.textContent);
            const plain = at.textContent.trim().split(/\\s+/);
            const isRight = JSON.stringify([plain, code]) === JSON.stringify(wanted.slice(0, 2));
            return isRight && tex === wanted[2].length ? [] : [[line, plain, code, tex]];
        })""",
        cases,
    )
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"100\% of $p\%$", "100% of p%"),
        (r"a\\b \alpha c:\d \{a\} \) \] \\", "a\\b \\alpha c:\\d {a} \\) \\] \\"),
        (r"\(unclosed and \[too", r"\(unclosed and \[too"),
        (r"\(\notacommand{x}\) and $\frac{1$", r"\(\notacommand{x}\) and $\frac{1$"),
        (r"\[\href{javascript:alert(1)}{x}\]", r"\[\href{javascript:alert(1)}{x}\]"),
        (r"\*not soft\* \_ \# \$5 \`a\`", "*not soft* _ # $5 `a`"),
    ],
)
def test_what_is_no_formula_is_shown_as_it_was_written(page: Any, text: str, shown: str) -> None:
    assert page.evaluate("(text) => whole(text).textContent.trim()", text) == shown


def test_a_backslash_outside_of_formulas_is_markdown_s(page: Any) -> None:
    """Before any character, in 300 texts of any order: an escape loses its backslash, a delimiter of TeX and a letter
    keep theirs.
    """
    chance = random.Random(5)
    marks = string.punctuation + "xé1"
    cases = []
    for _ in range(300):
        chosen = [mark for mark in chance.choices(marks, k=9) if mark not in "()[]"] + [chance.choice("([")]
        shown = "".join(mark if mark in string.punctuation else f"\\{mark}" for mark in chosen[:-1])
        cases.append(["w" + "".join(f"\\{mark}" for mark in chosen), f"w{shown}\\{chosen[-1]}"])
    wrong = "(cases) => cases.filter(([text, shown]) => whole(text).textContent.trim() !== shown)"
    assert page.evaluate(wrong, cases) == []
    formulas = r"\(x\,\%\{a\}\), \[\|y\|\;\]"
    content = "(text) => markdown.parse(text, {})[1].children.filter((t) => t.meta).map((t) => t.content)"
    assert page.evaluate(content, formulas) == [r"x\,\%\{a\}", r"\|y\|\;"]


CELLS = (  # what is written in a cell, and what is in it
    *(("$|x|$", "f:|x|"), (r"$\|x\|_2$", r"f:\|x\|_2"), ("$P(A|B)$", "f:P(A|B)"), (r"\(|y| + z\)", "f:|y| + z")),
    *((r"$\{x | x > 0\}$", r"f:\{x | x > 0\}"), ("$$|z|$$", "f:|z|"), (r"\[a|b\]", "f:a|b"), ("$x$", "f:x")),
    *(("$5", "$5"), ("5$", "5$"), ("US$10", "US$10"), ("$HOME", "$HOME"), ("`$x`", "c:$x"), (r"`a\|b`", "c:a|b")),
    *((r"a\|b", "a|b"), (r"100\%", "100%"), ("word", "word"), ("", "")),
)


def test_a_formula_in_a_table_keeps_its_bars_and_every_other_bar_ends_a_cell(page: Any) -> None:
    """400 tables of formulas, prices, variables, code and words, in quotes and lists too."""
    chance = random.Random(24)
    cases = []
    for _ in range(400):
        rows = [chance.choices(CELLS, k=3) for _ in range(chance.randint(1, 4))]
        lines = ["| " + " | ".join(written for written, _ in row) + " |" for row in rows]
        first = chance.choice(("", "> ", "- "))
        lines.insert(1, "|---|---|---|")
        further = "> " if first == "> " else " " * len(first)
        text = first + f"\n{further}".join(lines)
        cases.append([text, [[shown for _, shown in row] for row in rows]])
    wrong = page.evaluate(
        """(cases) => cases.flatMap(([text, wanted]) => {
            const rows = [];
            const mark = { text: "", text_special: "", code_inline: "c:", math_inline: "f:", math_block: "f:" };
            for (const { type, children } of markdown.parse(text, {})) {
                if (type === "tr_open") rows.push([]);
                const parts = (children ?? []).map(({ type, content }) => mark[type] + content);
                if (type === "inline" && rows.length) rows.at(-1).push(parts.join(""));
            }
            return JSON.stringify(rows) === JSON.stringify(wanted) ? [] : [[text, rows, wanted]];
        })""",
        cases,
    )
    assert wrong == []


def test_a_formula_shows_its_source_while_it_is_being_written(page: Any) -> None:
    begun = "(text) => { const at = whole(''); new MarkdownView(at).update(text, true); return at.innerHTML.trim(); }"
    assert page.evaluate(begun, "so\n\n\\[\nx &= 1") == '<p>so</p><div class="tex">\\[\nx &amp;= 1</div>'
    assert page.evaluate(begun, r"so \(x^2") == r'<p>so <span class="tex">\(x^2</span></p>'


@pytest.mark.parametrize(
    "tex",
    [
        r"\href{javascript:alert(1)}{x}",
        r"\url{https://evil.example/}",
        r"\includegraphics{https://evil.example/x.png}",
        r"\class{main}{x}",
        r"\id{input}{x}",
        r"\style{background:red}{x}",
        r"\data{a=b}{x}",
        r"x \label{input} \eqref{input} \tag{1}",
        r"\pmb{x} \sideset{_a^b}{_c^d}\sum",
        r"\text{<img src=x onerror=alert(1)>}",
        r"\unicode{60}script\unicode{62}",
    ],
)
def test_tex_makes_neither_links_nor_names_nor_styles(chat: Chat, says: Any, tex: str) -> None:
    says.answers["Go"] = [f"\\[{tex}\\] and \\({tex}\\)"]
    chat.ask("Go")
    names = chat["#log .text *"].evaluate_all("(all) => all.flatMap((e) => e.getAttributeNames())")
    assert set(names).isdisjoint({"id", "href", "src", "onerror", "title"})
    assert chat["#log .text :is(a, img, script)"].count() == 0


@pytest.mark.parametrize(
    "tex",
    [
        "{" * 20_000,
        r"\sqrt{" * 3_000 + "}" * 3_000,
        r"\def\a{\a\a}\a",
        r"\rule{1e9em}{1e9em}",
        "x^" * 5_000,
        r"\left(" * 5_000,
        r"\frac" * 5_000,
    ],
    ids=range(7),
)
def test_tex_that_would_not_end_is_shown_as_it_was_written_or_stays_small(page: Any, tex: str) -> None:
    run = "(text) => { const t = performance.now(), at = whole(text); document.body.replaceChildren(at);"
    run += "return [performance.now() - t, document.documentElement.scrollWidth] }"
    took_ms, width = page.evaluate(run, f"\\[{tex}\\]")
    page.evaluate("document.body.replaceChildren()")
    assert took_ms < 5_000 and width < 2_000_000
