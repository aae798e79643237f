// Mathematics: what of a text is TeX, as a plugin of markdown-it, and TeX as MathML, by Temml.
//
// TeX stands between $ and $ or \( and \), and displayed between $$ and $$ or \[ and \], or in an environment of its own.
// What is between $ and $ must read as mathematics, since prices, variables and regular expressions have dollars too.
// A displayed formula that begins a line may be MAX_LINES long. Within a formula a backslash is TeX's, elsewhere it is
// Markdown's. A delimiter that has no partner keeps its backslash.
//
// Code binds tighter than a formula: no formula holds a backtick, except as a quotation mark of TeX within braces.

const MAX_LINES = 100;
const MAX_TEX = 20_000; // characters; longer ones are shown as text
const CELL = /^\$(?:[\d.,]+|[A-Z_]{2,})\s*\|/; // a price or a variable that fills a cell
const HIDDEN_BAR = "\0"; // markdown-it lets no other one into a text
const QUOTED_OR_CODE = /\{[^{}`]*`{1,2}[^{}`']+'{1,2}[^{}`]*\}|`/g;
const ENVIRONMENT = /^\\begin\{(?:equation|align|alignat|gather|multline|eqnarray|CD)\*?\}/;
const MAX_OPENER = 18; // characters: \begin{multline*}
const OPENERS = new RegExp(`^(?:(\\$\\$)|(\\\\\\[)|(${ENVIRONMENT.source.slice(1)}))`);

// What a dollar means, see takeDollar.
const OF_TEX = /\\(?:left|right|[bB]igg?[lrm]?)(?![a-z])\s*(?:\\?.|$)|\\[a-z]+|\\.|(?<!\p{L})(?:sin|cos|tan|log|ln|exp|lim|max|min|mod|gcd|lcm)(?!\p{L})/gisu;
const OF_CODE = new RegExp(
  [
    ...[/^[.,;:!?)\]\/'](?=\D*\p{L})/, /"|(?<![\p{L}\p{N})\]}\\'|])'/], // .ajax(), "a", ('a')
    ...[/[)\]]\.\p{L}/, /\p{L}{2}\.\p{L}{2}/], // f(x).then, word.word
    ...[/[\^_]$/, /[\p{L}\p{N}]\/$/, /[,;:.]\s+\^|[\/|(]\^/], // a_, a/, | ^a
  ].map(({ source }) => source).join("|"),
  "u",
);
const PROSE = /\p{L}{3}\s+\p{L}{2}|\p{L}{2}\s+\p{L}{3}|[.?]\s/u; // two words, or the end of a sentence
const WORD = /(?<![\p{L}\p{N}])(?:\p{L}{3,}|an|as|at|by|if|in|is|it|of|on|or|so|to|vs|we)(?![\p{L}(])/iu;
const AMOUNTS = /^[\d\s.,;%kmb-]*$/i; // 10; 5, 10; 5k
const NEXT_FORMULA = /\$[^$\s][^$]{0,200}(?<!\s)\$(?!\$(?:[\s$]|$))/y; // not the $$ of a displayed one
const HALF = /[^\p{L}\p{N})\]}'!%\\]$/u; // an end that asks for more

/** What ends a displayed formula that begins `line`, or null. */
function closerOf(line) {
  const [, dollars, bracket, environment] = OPENERS.exec(line) ?? [];
  return dollars ?? (bracket ? "\\]" : (environment?.replace("begin", "end") ?? null));
}

/** Where the first backtick of code is in a text, or -1. */
function codeIn(text) {
  for (const { 0: found, index } of text.matchAll(QUOTED_OR_CODE)) if (found === "`") return index;
  return -1;
}

/** env.isOpen: the text may go on, and a formula that has not ended is one. */
function mathBlock(state, startLine, endLine, silent) {
  const lineAt = (line) => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
  const first = lineAt(startLine);
  const closer = closerOf(first);
  if (closer === null) return false;
  const isEnvironment = closer.startsWith("\\end");
  const opener = isEnvironment ? "" : first.slice(0, 2);
  const lines = [first.slice(opener.length)];
  let line = startLine;
  for (let end; (end = lines.at(-1).indexOf(closer)) < 0 || lines.at(-1).slice(end + closer.length).trim(); ) {
    if (end >= 0 || codeIn(lines.at(-1)) >= 0) return false; // a sentence goes on behind it, or it is one
    line += 1;
    const isIn = line < endLine && line - startLine < MAX_LINES && (state.isEmpty(line) || state.sCount[line] >= state.blkIndent);
    if (!isIn) {
      if (!state.env.isOpen || line < state.lineMax || line - startLine >= MAX_LINES) return false;
      return silent || pushBlock(state, "math_open", startLine, line, opener + lines.join("\n"));
    }
    lines.push(lineAt(line));
  }
  if (codeIn(lines.at(-1)) >= 0) return false;
  const text = lines.join("\n");
  const tex = isEnvironment ? text : text.slice(0, text.lastIndexOf(closer));
  return silent || pushBlock(state, "math_block", startLine, line + 1, tex, opener && [opener, closer]);
}

function pushBlock(state, type, from, to, content, delimiters) {
  state.line = to;
  const token = state.push(type, "div", 0);
  Object.assign(token, { block: true, content, map: [from, to], meta: delimiters });
  return true;
}

/** One step of a paragraph: a formula in it, or a delimiter without its partner. */
function mathInline(state, silent) {
  const { src, pos } = state;
  const next = src[pos + 1] ?? "";
  if (src[pos] === "$") return next === "$" ? take(state, silent, "$$", "$$", "math_block") : takeDollar(state, silent);
  if (src[pos] !== "\\") return false;
  if (next === "(") return take(state, silent, "\\(", "\\)", "math_inline") || keep(state, silent);
  if (next === "[") return take(state, silent, "\\[", "\\]", "math_block") || keep(state, silent);
  if (next === ")" || next === "]") return keep(state, silent);
  const [begin] = (next === "b" && ENVIRONMENT.exec(src.slice(pos, pos + MAX_OPENER))) || [];
  return begin !== undefined && take(state, silent, begin, begin.replace("begin", "end"), "math_block");
}

/** A delimiter, as it is. */
function keep(state, silent) {
  if (!silent) state.pending += state.src.slice(state.pos, state.pos + 2);
  state.pos += 2;
  return true;
}

function take(state, silent, opener, closer, type) {
  const start = state.pos + opener.length;
  const end = find(state, closer, start);
  if (end < 0 && !(state.env.isOpen && state.src.length === state.posMax && closer !== "$$")) return false;
  const content = state.src.slice(start, end < 0 ? state.posMax : end);
  if (!content.trim() || end > state.posMax || holdsCode(state, start, start + content.length)) return false;
  if (!silent && end < 0) state.push("math_open", "span", 0).content = opener + content;
  else if (!silent && ENVIRONMENT.test(opener)) state.push(type, "span", 0).content = opener + content + closer;
  else if (!silent) Object.assign(state.push(type, "span", 0), { content, meta: [opener, closer] });
  state.pos = end < 0 ? state.posMax : end + closer.length;
  return true;
}

/** Where `closer` is next. What was not found once is not looked for again, so that the time stays linear. */
function find(state, closer, from) {
  const missing = (state.missing ??= new Set());
  if (missing.has(closer)) return -1;
  const end = state.src.indexOf(closer, from);
  if (end < 0) missing.add(closer);
  return end;
}

/** Whether code is between two places. Code that was found is not looked for again, so that the time stays linear. */
function holdsCode(state, from, to) {
  if (from <= state.codeAt && state.codeAt < to) return true;
  const found = codeIn(state.src.slice(from, to));
  if (found >= 0) state.codeAt = from + found;
  return found >= 0;
}

/**
 * $x$. As in pandoc, no space is within the dollars and no digit behind them. Variables of a shell or of jQuery, regular
 * expressions and prices are left: what lies between must read as mathematics.
 */
function takeDollar(state, silent) {
  const { src, pos } = state;
  if (/[\s$]|^$/.test(src[pos + 1] ?? "")) return false;
  let end = pos;
  do end = find(state, "$", end + 1);
  while (end > 0 && src[end - 1] === "\\");
  if (end < 0 || end >= state.posMax || /\s/.test(src[end - 1]) || !mayClose(src, end)) return false;
  const tex = src.slice(pos + 1, end);
  if (tex.length > MAX_TEX || !isApart(tex, src[pos - 1] ?? "", src[end + 1] ?? "") || !readsAsMath(tex)) return false;
  if (/^\d/.test(tex) && !isNoPrice(tex, src, pos)) return false;
  if (holdsCode(state, pos + 1, end)) return false;
  if (!silent) Object.assign(state.push("math_inline", "span", 0), { content: tex, meta: ["$", "$"] });
  state.pos = end + 1;
  return true;
}

/** Whether the dollar at `end` may end a formula: no digit is behind it, nor a dollar that begins no other formula. */
function mayClose(src, end) {
  const behind = src[end + 1] ?? "";
  if (behind !== "$") return !/\d/.test(behind);
  NEXT_FORMULA.lastIndex = end + 1;
  return NEXT_FORMULA.test(src);
}

/** Whether the dollars are a formula's by what is beside them: H$_2$O and $n$th are, 5$-10$ and $a+$b are not. */
function isApart(tex, before, behind) {
  if (/[a-z\d]/i.test(before) && !/^[\\^_]/.test(tex)) return false;
  return !(/[\w\\{([]/.test(behind) && (HALF.test(tex) || /^[a-z]\w+$/i.test(tex)));
}

/** Whether TeX between two dollars is mathematics by its own looks: whole, no code and no sentence. */
function readsAsMath(tex) {
  const bare = bareOf(tex);
  if (bare === null || OF_CODE.test(bare) || PROSE.test(bare)) return false;
  return /[[\]]/.test(bare) || isBalanced(bare); // [0, 1) is an interval
}

/** Whether what begins with a digit is no price: it has no word, and no bare amount stands behind a price of its line. */
function isNoPrice(tex, src, pos) {
  if (tex.includes("\n") || WORD.test(bareOf(tex))) return false;
  const last = src.lastIndexOf("$", pos - 1);
  const isBehindPrice = pos > 0 && last >= 0 && /\d/.test(src[last + 1]) && !src.slice(last, pos).includes("\n");
  return !(isBehindPrice && AMOUNTS.test(tex));
}

/** TeX with a backslash for each of its commands and groups in braces, or null where a brace has no partner. */
function bareOf(tex) {
  let depth = 0;
  let kept = "";
  for (const char of tex.replace(OF_TEX, "\\")) {
    if (char === "}" && --depth < 0) return null;
    if (depth === 0 && char !== "}") kept += char === "{" ? "\\" : char;
    if (char === "{") depth += 1;
  }
  return depth ? null : kept;
}

function isBalanced(text) {
  let depth = 0;
  for (const char of text) {
    if (char === "(") depth += 1;
    else if (char === ")" && --depth < 0) return false;
  }
  return depth === 0;
}

/** Hide the bars of formulas while blocks are read: a table's lines are cut into cells at all others. */
function hideBars(state) {
  const lines = state.src.split("\n");
  state.src = lines.map((line) => (line.includes("|") && /[$\\]/.test(line) ? withHiddenBars(line, state.md) : line)).join("\n");
}

function withHiddenBars(line, md) {
  const state = new md.inline.State(line, md, {}, []);
  let shown = "";
  while (state.pos < state.posMax) {
    const from = state.pos;
    if ("$\\`".includes(line[from]) && !CELL.test(line.slice(from))) md.inline.skipToken(state);
    else state.pos += 1;
    const read = line.slice(from, state.pos);
    const isFormula = "$\\".includes(read[0]) && read.length > 2; // an escape has two characters
    shown += isFormula ? read.replaceAll("|", HIDDEN_BAR) : read;
  }
  return shown;
}

function showBars({ tokens }) {
  for (const token of tokens) for (const part of ["content", "info"]) token[part] = token[part].replaceAll(HIDDEN_BAR, "|");
}

/** The plugin. The text of a formula goes through the sanitizer as text; `showMath` then shows it. */
function math(md) {
  const escape = md.utils.escapeHtml;
  const draw = (name) => (tokens, at) => {
    const { content, meta, block } = tokens[at];
    const [opener, closer] = meta || ["", ""];
    const [tag, delimiters] = [block ? "div" : "span", escape(`${opener} ${closer}`)];
    return `<${tag} class="${name}" title="${delimiters}">${escape(content)}</${tag}>`;
  };
  md.core.ruler.before("block", "hide_bars", hideBars);
  md.core.ruler.after("block", "show_bars", showBars);
  md.block.ruler.before("fence", "math", mathBlock, { alt: ["paragraph", "blockquote", "list"] });
  md.inline.ruler.before("escape", "math", mathInline);
  md.renderer.rules.math_inline = draw("math");
  md.renderer.rules.math_block = draw("math display");
  md.renderer.rules.math_open = draw("tex");
}

/** A formula that is wider than its column is scrolled, by keyboard too; all others would only be in the way of Tab. */
const scrolled = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});

/** Show the formulas in what Markdown has become; one that Temml does not understand stays as it was written. */
function showMath(fragment) {
  for (const node of fragment.querySelectorAll(".math")) {
    const tex = node.textContent;
    const [opener, closer] = node.title.split(" ");
    node.removeAttribute("title");
    try {
      node.replaceChildren(mathOf(tex, node.classList.contains("display")));
      scrolled.observe(node);
    } catch (error) {
      console.info(error.message);
      node.className = "tex";
      node.textContent = opener + tex + closer;
    }
  }
  for (const node of fragment.querySelectorAll(".tex")) node.removeAttribute("title");
}

/** A formula as a MathML element. Raises an error where it is none. */
function mathOf(tex, displayMode) {
  if (tex.length > MAX_TEX) throw new Error(`a formula must have at most ${MAX_TEX} characters, got ${tex.length}`);
  const tree = temml.__renderToMathMLTree(tex, { displayMode, throwOnError: true, maxSize: [50, 500] });
  moveStyles(tree);
  const made = tree.toNode();
  for (const link of made.querySelectorAll("a")) link.replaceWith(...link.childNodes); // of \eqref
  for (const node of [made, ...made.querySelectorAll("[id], [href]")]) for (const name of ["id", "href"]) node.removeAttribute(name);
  return made;
}

/** The page's policy refuses a style that is an attribute. */
function moveStyles(node) {
  const { style, ...rest } = node.attributes ?? {};
  if (style) for (const [, name, value] of style.matchAll(/([\w-]+):\s*([^;]+)/g)) node.style[name] = value;
  if (style) node.attributes = rest;
  for (const child of node.children ?? []) moveStyles(child);
}
