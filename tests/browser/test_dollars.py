"""What a dollar begins in an answer: a formula, a price, a variable, or the end of a regular expression."""

import random
from typing import Any

import pytest

from tests.browser.test_math import FORMULAS

pytestmark = pytest.mark.slow

TEXTS: list[tuple[str, list[str]]] = [  # and the TeX of its formulas
    ("It costs $5 ($x$)", ["x"]),
    ("It costs $5 ($x$) or $6 ($y$).", ["x", "y"]),
    ("$5 to $10, 5$ and 10$", []),
    ("so $5.50 total; f($x)", []),
    ("so $5.50 total; f($x$)", ["x"]),
    ("$5 and $10, $5-$10 and $ x $", []),
    ("Between 5$-10$ a day, or 5$ to 10$.", []),
    ("US$5 or US$10, A$7 and 8$", []),
    ("It is $1,000.50, $2k or $3M, not 4$.", []),
    ("$10 (was $20), $30/month, $5/$10", []),
    ("from $5 (or 10$)", []),
    ("A fee of $10 for each x, 20$ for y", []),
    ("Pay $20 now and 10$ later", []),
    ("$5 each, so $n$ of them cost $5n$.", ["n", "5n"]),
    ("It is $5 if $x > 0$, $6 else.", ["x > 0"]),
    ("$5, $6 and $7 sum to $5 + 6 + 7 = 18$", ["5 + 6 + 7 = 18"]),
    ("costs $5, $x$ costs more", ["x"]),
    (r"costs $5 [$\alpha$]", [r"\alpha"]),
    ("Save $5/$x$ of it", ["x"]),
    ("$3 plus $2 is $5", []),
    ("$5 vs 10$", []),
    ("$10\nand 20$", []),
    ("price: $9.99; sale: 7$", []),
    ("Set $HOME and $PATH", []),
    ("Set $HOME/bin:$PATH. H$_2$O", ["_2"]),
    ("Set $HOME/bin:$PATH", []),
    ("$HOME$PATH and ${A}_${B}, {$a}/{$b}", []),
    ("echo $1 $2, $@ and $?", []),
    ("echo $a+$b; echo $x=$y", []),
    ("cp $src/$file $dst/$file", []),
    ("$name is set in ^foo$", []),
    ('Run $PROG -a "$FILE"', []),
    ("($x,$y) and $x->run($y)", []),
    ('say "$a":"$b"', []),
    ("printf $(date)_$(host)", []),
    ("$.ajax(). Regex ^a$", []),
    ("$.get(u).then($x)", []),
    ("$(this).hide() and ^a$", []),
    ("$('.a').hide(), $('.b').show()", []),
    ("f($x) and g($y)", []),
    ("$el.hide() or ^a$", []),
    ('$("a").on($)', []),
    ("^a$|^b$", []),
    ("matches ^foo$, ^bar$ or ^baz$", []),
    (r"/^\d+$/ and /x$/", []),
    ("[a-z]+$ then ^[0-9]$", []),
    ("$x$", ["x"]),
    (r"$\alpha$$\beta$", [r"\alpha", r"\beta"]),
    ("$a$$b$$c$ and $$", ["a", "b", "c"]),
    ("$5$ and $3.14$, $.5$ too", ["5", "3.14", ".5"]),
    ("the roots $1, 2, 3$", ["1, 2, 3"]),
    ("$2x + 1$, $2xy$ and $4ac$", ["2x + 1", "2xy", "4ac"]),
    (r"$2\pi r$ and $3 \times 10^8$", [r"2\pi r", r"3 \times 10^8"]),
    (r"$50\%$ of $1{,}000$", [r"50\%", "1{,}000"]),
    (r"$10^{-3}$, $5!$, $7 \bmod 3$", ["10^{-3}", "5!", r"7 \bmod 3"]),
    ("$2(x+1)$, $3f(x)$ and $2sin(x)$", ["2(x+1)", "3f(x)", "2sin(x)"]),
    (r"$0 \text{ if } x < 0$", [r"0 \text{ if } x < 0"]),
    (r"$1 + \text{the rest of it}$", [r"1 + \text{the rest of it}"]),
    ("H$_2$O, m$^2$ and 10$^5$", ["_2", "^2", "^5"]),
    ("the $n$th of $x$s", ["n", "x"]),
    ("设$x$为整数", ["x"]),
    ("$[0, 1)$ and $(0, 1]$, $]0,1[$", ["[0, 1)", "(0, 1]", "]0,1["]),
    (r"$f: A \to B$, $x=5.$ So", [r"f: A \to B", "x=5."]),
    ("$E = mc^2$, $PV = nRT$", ["E = mc^2", "PV = nRT"]),
    ("$speed = distance / time$", ["speed = distance / time"]),
    ("$Attention(Q, K, V)$", ["Attention(Q, K, V)"]),
    (r"$\left( x \right.$ and $\left. y \right|_{x=0}$", [r"\left( x \right.", r"\left. y \right|_{x=0}"]),
    (r"$\leftarrow$ and $A \leftarrow B$", [r"\leftarrow", r"A \leftarrow B"]),
    (r"$f'(x)$, $|x|$, $\{a\}$, $+$ and $:=$", ["f'(x)", "|x|", r"\{a\}", "+", ":="]),
    (r"$\mathrm{speed of light}$", [r"\mathrm{speed of light}"]),
    (r"$\frac{number of a}{number of b}$", [r"\frac{number of a}{number of b}"]),
    ("$a +\nb$", ["a +\nb"]),
    (r"$x_{max}$ and $\operatorname{softmax}(z)$", ["x_{max}", r"\operatorname{softmax}(z)"]),
    ("$5x = 10$, so $x = 2$ and it costs $7.", ["5x = 10", "x = 2"]),
    ("**$x$** and ($y$), [$z$]", ["x", "y", "z"]),
    ('$x$-axis, "$y$", $z$.', ["x", "y", "z"]),
    (r"$O(n \log n)$ is $P(A and B)$", [r"O(n \log n)", "P(A and B)"]),
    ("$cos x sin y$", ["cos x sin y"]),
    ("$1$st, $2$nd", ["1", "2"]),
    (r"So \begin{equation} x = 1 \end{equation} holds.", [r"\begin{equation} x = 1 \end{equation}"]),
    ("So \\begin{align}\na &= b \\\\\n&= c\n\\end{align} holds.", ["\\begin{align}\na &= b \\\\\n&= c\n\\end{align}"]),
    (
        r"\begin{gather*}x\end{gather*} and \begin{align} y \end{align}",
        [r"\begin{gather*}x\end{gather*}", r"\begin{align} y \end{align}"],
    ),
    (r"\begin{equation} is a word, `\end{equation}`", []),
    (r"\begin{itemize} a \end{itemize}", []),
]
FOUND = """(texts) => texts.map((text) => markdown.parse(text, {})
    .flatMap((block) => [block, ...(block.children ?? [])])
    .filter(({ type }) => type.startsWith("math")).map(({ content }) => content))"""
NO_FORMULAS = ("$5", "$1,000", "$5.50", "US$5", "$2k", "$5/month", "$HOME", "$1", "f($x)", "$.ajax()", "5$", "^a$")
TEX = ("x", "2x", r"\frac{a}{b}", "x^2 + 1", "5 + 6 = 11", "a_{max}", "2(x+1)", "f(x)", r"0.5\%", "n!", "[0, 1)")


def test_a_dollar_begins_a_formula_where_the_text_reads_as_mathematics(page: Any) -> None:
    assert len(TEXTS) >= 80 and len(dict(TEXTS)) == len(TEXTS)
    found = page.evaluate(FOUND, [text for text, _ in TEXTS])
    assert [(text, each) for (text, _), each in zip(TEXTS, found, strict=True)] == TEXTS
    broken = page.evaluate("(texts) => texts.filter((text) => whole(text).querySelector('.tex'))", list(dict(TEXTS)))
    assert broken == [], "and each formula is shown as one"


def test_every_formula_may_stand_between_dollars(page: Any) -> None:
    formulas = [tex for tex in FORMULAS if "tag" not in tex]
    assert page.evaluate(FOUND, [f"It costs $5 or ${tex}$, so $6." for tex in formulas]) == [[tex] for tex in formulas]


def test_no_price_or_variable_takes_a_formula_away(page: Any) -> None:
    """1,000 texts of prices, variables, words and formulas in any order: whatever precedes a formula, it is found."""
    chance = random.Random(35)
    cases = []
    for _ in range(1_000):
        text, formulas = "", []
        for _ in range(chance.randint(1, 7)):
            kind = chance.choice(("plain", "formula", "word"))
            if kind == "formula":
                formulas.append(chance.choice(TEX))
                text += " " * text[-1:].isalnum() + f"${formulas[-1]}$"
            else:
                text += chance.choice(NO_FORMULAS if kind == "plain" else ("so", "costs", "per item", "to", "if it is"))
            text += chance.choice((" ", " ", ", ", "; ", " (", "/", "-", " = "))
        cases.append((text + ".", formulas))
    found = page.evaluate(FOUND, [text for text, _ in cases])
    lost = [(text, tex, each) for (text, tex), each in zip(cases, found, strict=True) if not contains(each, tex)]
    assert lost == []
    num_more = sum(len(each) - len(tex) for (_, tex), each in zip(cases, found, strict=True))
    assert num_more < 30, "5$ and ^a$ close a dollar that was open: what is between can read as mathematics"


def contains(found: list[str], wanted: list[str]) -> bool:
    """Whether all that is wanted was found, in its order."""
    rest = iter(found)
    return all(tex in rest for tex in wanted)
