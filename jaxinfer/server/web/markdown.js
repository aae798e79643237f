// Markdown as DOM nodes, while it is still being written. Text never becomes markup: there is no innerHTML here, HTML is
// shown as it is written, and a link goes to http, https or mailto or is text.
//
// Blocks: paragraphs, headings, fences, lists, quotes, tables, rules. A block is settled once a later one has surely begun;
// only what is not settled is built again when more comes, and an open fence only grows.
// Every loop below is linear in the text, whatever it holds; nesting stops at MAX_DEPTH.
// Source: CommonMark 0.31 and GFM, without what models do not write (HTML, indented code, reference links).

const MAX_DEPTH = 12;
const CHUNK_LINES = 200; // of code in one element: what grows stays small

const FENCE = /^ {0,3}(?:(`{3,})(?=[^`]*$)|(~{3,}))[ \t]*(\S*)/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:([ \t]+)|$)/;
const ALIGNED = /^:?-+:?$/;
const UNFINISHED = /^\s*(?:`{1,2}|~{1,2}|[-*+_]{1,2}|#{1,6}|\d{1,9}[.)]?|>)\s*$/; // a last line that may yet become either

function element(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

/** Shows a text that grows in `container`. Invariant: the nodes of `open` are the last ones and show source[settled:]. */
class MarkdownView {
  constructor(container) {
    this.container = container;
    this.reset();
  }

  reset() {
    this.source = "";
    this.settled = 0;
    this.open = [];
    this.fence = null;
    this.container.replaceChildren();
  }

  /** isOpen: more may come; then what is begun at the end, bold text say, counts as ended there. */
  update(source, isOpen = false) {
    if (!source.startsWith(this.source)) this.reset();
    this.source = source;
    if (this.fence !== null && this.fence.grow(source, isOpen)) return;
    if (this.fence !== null) {
      this.settled = this.fence.end;
      this.open = [];
      this.fence = null;
    }
    for (const node of this.open) node.remove();
    this.open = this.build(isOpen);
    this.container.append(...this.open);
  }

  /** Build what is not settled; append what can be settled now and return the rest. */
  build(isOpen) {
    const written = this.source.slice(this.settled).split("\n");
    const lines = written.map(untab);
    const whole = lines.length - 1; // lines that have ended
    if (isOpen && UNFINISHED.test(lines[whole])) lines.pop();
    const found = readBlocks(lines, 0);
    const numSettled = countSettled(found, lines, whole);
    this.container.append(...found.slice(0, numSettled).map((block) => buildBlock(block, 0, false)));
    let line = 0;
    for (const stop = found[numSettled]?.from ?? 0; line < stop; line++) this.settled += written[line].length + 1;
    const rest = found.slice(numSettled);
    const only = rest.length === 1 ? rest[0] : null;
    if (only?.kind === "fence" && !only.isClosed && only.from < whole) {
      this.fence = new OpenFence(only, this.settled + written[only.from].length + 1);
      this.fence.grow(this.source, isOpen);
      return [this.fence.element];
    }
    return rest.map((block, i) => buildBlock(block, 0, isOpen && i === rest.length - 1));
  }
}

/** How many blocks nothing can change that comes later: all but the last, and what that may yet turn out to go on with. */
function countSettled(blocks, lines, whole) {
  const last = blocks.length - 1;
  if (last < 1) return 0;
  const { kind, from } = blocks[last];
  const isSure = from + (kind === "table" ? 1 : 0) < whole; // by the lines that say what it is
  const isApart = lines[from - 1].trim() === "" && blocks[last - 1].kind !== "list";
  return isSure || isApart ? last : last - 1;
}

/** A fence whose end has not come: it takes whole lines as they come and shows the one that has not ended. */
class OpenFence {
  constructor(block, start) {
    this.block = block;
    this.at = start; // of the first line that is not taken
    this.end = start;
    this.code = new CodeView(block.language);
    this.element = this.code.element;
    this.partial = document.createTextNode("");
    this.code.code.append(this.partial);
  }

  /** Take what has come; false once the fence has ended, and then `end` is where the text goes on. */
  grow(source, isOpen) {
    const taken = [];
    let stop;
    while ((stop = source.indexOf("\n", this.at)) >= 0) {
      const line = source.slice(this.at, stop);
      this.at = stop + 1;
      if (closes(line, this.block)) {
        this.partial.remove();
        this.code.add(taken);
        this.end = this.at;
        return false;
      }
      taken.push(dedent(line, this.block.indent));
    }
    this.partial.remove();
    this.code.add(taken);
    const line = source.slice(this.at);
    const mayClose = isOpen ? /^ {0,3}[`~]*$/.test(line) : closes(line, this.block);
    this.partial.data = mayClose ? "" : dedent(line, this.block.indent);
    this.code.code.append(this.partial);
    return true;
  }
}

/** Code with its language and a button that copies it. */
class CodeView {
  constructor(language) {
    this.code = element("code");
    this.chunk = null;
    this.numLines = 0;
    const copy = element("button", "Copy");
    copy.type = "button";
    copy.className = "copy-code";
    copy.addEventListener("click", () => copyText(this.code.textContent.replace(/\n$/, ""), copy));
    const name = element("span", language || "text");
    const head = element("div", name, copy);
    head.className = "code-head";
    const pre = element("pre", this.code);
    pre.tabIndex = 0; // it scrolls sideways, by keyboard too
    this.element = element("div", head, pre);
    this.element.className = "code";
  }

  add(lines) {
    for (let i = 0; i < lines.length; ) {
      if (this.chunk === null || this.numLines >= CHUNK_LINES) {
        this.chunk = document.createTextNode("");
        const span = element("span", this.chunk);
        span.className = "chunk";
        this.code.append(span);
        this.numLines = 0;
      }
      const part = lines.slice(i, i + CHUNK_LINES - this.numLines);
      this.chunk.appendData(part.join("\n") + "\n");
      this.numLines += part.length;
      i += part.length;
    }
  }
}

function closes(line, block) {
  const match = /^ {0,3}(`+|~+)[ \t]*$/.exec(line);
  return match !== null && match[1][0] === block.fence[0] && match[1].length >= block.fence.length;
}

function dedent(line, count) {
  let start = 0;
  while (start < count && line[start] === " ") start++;
  return line.slice(start);
}

function untab(line) {
  return line.startsWith("\t") ? line.replace(/^\t+/, (tabs) => "    ".repeat(tabs.length)) : line;
}

function indentOf(line) {
  let count = 0;
  while (line[count] === " ") count++;
  return count;
}

/** The blocks of some lines, each with the line where it begins. */
function readBlocks(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at++;
      continue;
    }
    const block = readBlock(lines, at, depth);
    blocks.push({ ...block, from: at });
    at = block.to;
  }
  return blocks;
}

function readBlock(lines, at, depth) {
  const line = lines[at];
  let match;
  if ((match = FENCE.exec(line))) return readFence(lines, at, match);
  if ((match = HEADING.exec(line))) return { kind: "heading", level: match[1].length, text: headingText(line), to: at + 1 };
  if (RULE.test(line)) return { kind: "rule", to: at + 1 };
  if (depth < MAX_DEPTH && QUOTE.test(line)) return readQuote(lines, at);
  if (depth < MAX_DEPTH && (match = ITEM.exec(line))) return readList(lines, at, match);
  if (isTable(lines, at)) return readTable(lines, at);
  return readParagraph(lines, at, depth);
}

function readFence(lines, at, [, ticks, fence = ticks, language]) {
  const block = { kind: "fence", fence, language, indent: indentOf(lines[at]), isClosed: false };
  let to = at + 1;
  while (to < lines.length && !closes(lines[to], block)) to++;
  block.isClosed = to < lines.length;
  block.lines = lines.slice(at + 1, to);
  return { ...block, to: Math.min(lines.length, to + 1) };
}

function headingText(line) {
  const text = line.trim().replace(/^#+/, "").trim();
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end--;
  return end === 0 || text[end - 1] === " " ? text.slice(0, end).trim() : text;
}

function readQuote(lines, at) {
  const inner = [];
  while (at < lines.length && QUOTE.test(lines[at])) inner.push(untab(lines[at++].replace(QUOTE, "")));
  return { kind: "quote", lines: inner, to: at };
}

/** Lines belong to an item when they are indented further than its mark, or go on with its paragraph. */
function readList(lines, at, first) {
  const base = first[1].length;
  const isOrdered = /\d/.test(first[2]);
  const items = [];
  let isLoose = false;
  let isAfterBlank = false;
  for (; at < lines.length; at++) {
    const line = lines[at];
    const match = ITEM.exec(line);
    if (line.trim() === "") {
      isAfterBlank = true;
      items.at(-1).lines.push("");
    } else if (indentOf(line) >= base + 2 && items.length) {
      const item = items.at(-1);
      if (item.lines.length === 1) item.indent = Math.min(item.indent, indentOf(line));
      item.lines.push(untab(dedent(line, item.indent)));
      isAfterBlank = false;
    } else if (match && match[1].length <= base + 1 && /\d/.test(match[2]) === isOrdered && !RULE.test(line)) {
      isLoose ||= isAfterBlank && items.length > 0;
      const width = match[0].length - (match[3] && match[3].length > 4 ? match[3].length - 1 : 0);
      items.push({ indent: width, lines: [untab(line.slice(width))] });
      isAfterBlank = false;
    } else if (items.length && !isAfterBlank && !beginsBlock(lines, at)) {
      items.at(-1).lines.push(line);
    } else {
      break;
    }
  }
  return { kind: "list", isOrdered, start: parseInt(first[2], 10), items, isLoose, to: at };
}

function beginsBlock(lines, at) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  const match = ITEM.exec(line);
  // a number alone does not end a paragraph: "in\n1986. was" is one
  return (match !== null && (!/\d/.test(match[2]) || parseInt(match[2], 10) === 1)) || isTable(lines, at);
}

function cellsOf(line) {
  const cells = [];
  let cell = "";
  const text = line.trim();
  for (let i = text.startsWith("|") ? 1 : 0; i < text.length; i++) {
    if (text[i] === "\\" && text[i + 1] === "|") cell += text[++i];
    else if (text[i] !== "|") cell += text[i];
    else {
      cells.push(cell.trim());
      cell = "";
    }
  }
  if (cell.trim() !== "" || !text.endsWith("|")) cells.push(cell.trim());
  return cells;
}

function isTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|") || !/^[ \t|:-]+$/.test(lines[at + 1])) return false;
  const below = cellsOf(lines[at + 1]);
  return below.every((cell) => ALIGNED.test(cell)) && below.length === cellsOf(lines[at]).length;
}

function readTable(lines, at) {
  const head = cellsOf(lines[at]);
  const align = cellsOf(lines[at + 1]).map((cell) =>
    cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left",
  );
  const rows = [];
  for (at += 2; at < lines.length && lines[at].trim() !== "" && lines[at].includes("|"); at++) rows.push(cellsOf(lines[at]));
  return { kind: "table", head, align, rows, to: at };
}

function readParagraph(lines, at, depth) {
  const text = [lines[at++].trim()];
  while (at < lines.length && lines[at].trim() !== "" && (depth >= MAX_DEPTH || !beginsBlock(lines, at)))
    text.push(lines[at++].trim());
  return { kind: "paragraph", text: text.join("\n"), to: at };
}

function buildBlock(block, depth, isOpen) {
  switch (block.kind) {
    case "fence": {
      const view = new CodeView(block.language);
      view.add(block.lines.map((line) => dedent(line, block.indent)));
      return view.element;
    }
    case "heading":
      return inline(block.text, element(`h${block.level}`), isOpen);
    case "rule":
      return element("hr");
    case "quote":
      return element("blockquote", ...buildAll(block.lines, depth + 1, isOpen));
    case "list":
      return buildList(block, depth, isOpen);
    case "table":
      return buildTable(block);
    default:
      return inline(block.text, element("p"), isOpen);
  }
}

function buildAll(lines, depth, isOpen) {
  const blocks = readBlocks(lines, depth);
  return blocks.map((block, i) => buildBlock(block, depth, isOpen && i === blocks.length - 1));
}

function buildList(block, depth, isOpen) {
  const list = element(block.isOrdered ? "ol" : "ul");
  if (block.isOrdered && block.start !== 1) list.start = block.start;
  block.items.forEach((item, i) => {
    const isLast = isOpen && i === block.items.length - 1;
    const task = /^\[([ xX])\] /.exec(item.lines[0]);
    if (task) item.lines[0] = (task[1] === " " ? "\u2610 " : "\u2611 ") + item.lines[0].slice(4);
    const [first, ...rest] = buildAll(item.lines, depth + 1, isLast);
    const isPlain = !block.isLoose && first?.tagName === "P";
    list.append(element("li", ...(isPlain ? first.childNodes : first ? [first] : []), ...rest));
  });
  return list;
}

function buildTable({ head, align, rows }) {
  const row = (cells, tag) =>
    element(
      "tr",
      ...align.map((side, i) => {
        const cell = inline(cells[i] ?? "", element(tag), false);
        if (side !== "left") cell.className = side;
        return cell;
      }),
    );
  const table = element("table", element("thead", row(head, "th")), element("tbody", ...rows.map((cells) => row(cells, "td"))));
  const scroller = element("div", table);
  scroller.className = "table";
  scroller.tabIndex = 0;
  return scroller;
}

/** The address if it is one that a link may lead to, else null. */
function safeAddress(text) {
  const url = URL.canParse(text) ? new URL(text) : null;
  return url !== null && ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

function link(address, ...children) {
  const anchor = element("a", ...children);
  anchor.href = anchor.title = address;
  anchor.target = "_blank";
  anchor.rel = "noopener noreferrer";
  return anchor;
}

const SPECIAL = /[\\`*_~![\]<\n]|https?:\/\//g;
const TARGET = /\([ \t]*(?:<([^<>\n]*)>|([^\s()<]*(?:\([^\s()]*\)[^\s()]*)*))(?:[ \t]+(?:"[^"\n]*"|'[^'\n]*'))?[ \t]*\)/y;
const ANGLED = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const BREAK = /<br ?\/?>/iy;
const BARE = /https?:\/\/[^\s<>"'`|]{1,2000}/y;
const MARKS = { "*": ["em", "strong"], _: ["em", "strong"], "~": [null, "del"] };

/** What a block's text says inside it, appended to `parent`, which is returned. */
function inline(text, parent, isOpen) {
  return new Inline(text, parent, isOpen).run();
}

/** openers: marks that may yet be closed, as Text nodes of `parent`; brackets: the same of links, with the openers' number. */
class Inline {
  constructor(text, parent, isOpen) {
    this.text = text;
    this.parent = parent;
    this.isOpen = isOpen;
    this.openers = [];
    this.counts = { "*": 0, _: 0, "~": 0 };
    this.brackets = [];
    this.depths = new Map(); // of the elements made here
    this.ticks = null;
  }

  run() {
    const { text, parent } = this;
    let at = 0;
    while (at < text.length) {
      SPECIAL.lastIndex = at;
      const found = SPECIAL.exec(text);
      if (found === null) break;
      if (found.index > at) parent.append(text.slice(at, found.index));
      at = this.take(found[0], found.index);
    }
    if (at < text.length) parent.append(text.slice(at));
    if (this.isOpen) this.closeBold();
    return parent;
  }

  /** Append something that ends at `end` of the text. */
  put(node, end) {
    this.parent.append(node);
    return end;
  }

  /** Handle what begins at `at`; returns where the text goes on. */
  take(what, at) {
    const next = this.text[at + 1] ?? "";
    if (what === "\n") return this.put(element("br"), at + 1);
    if (what === "\\" && next === "\n") return this.put(element("br"), at + 2);
    if (what === "\\" && /[!-/:-@[-`{-~]/.test(next)) return this.put(next, at + 2);
    if (what === "`") return this.takeCode(at);
    if (what in MARKS) return this.takeMark(what, at);
    if (what === "[") return this.takeBracket(what, at);
    if (what === "!" && next === "[") return this.takeBracket("![", at);
    const end = what === "]" ? this.takeLink(at) : what === "<" ? this.takeAngle(at) : what.length > 1 ? this.takeBare(at) : null;
    return end ?? this.put(what, at + what.length);
  }

  takeBracket(what, at) {
    const node = document.createTextNode(what);
    this.brackets.push({ node, height: this.openers.length });
    return this.put(node, at + what.length);
  }

  /** Runs of backticks by their length, found once: a span ends at the next run of the same length. */
  takeCode(at) {
    if (this.ticks === null) {
      this.ticks = new Map();
      for (const { index, 0: run } of this.text.matchAll(/`+/g)) {
        if (!this.ticks.has(run.length)) this.ticks.set(run.length, { starts: [], next: 0 });
        this.ticks.get(run.length).starts.push(index);
      }
    }
    let start = at;
    while (this.text[start] === "`") start++;
    const count = start - at;
    const runs = this.ticks.get(count);
    while (runs && runs.next < runs.starts.length && runs.starts[runs.next] < start) runs.next++;
    const end = runs?.starts[runs.next];
    if (end === undefined && !(this.isOpen && count === 1)) return this.put(this.text.slice(at, start), start);
    let code = this.text.slice(start, end).replaceAll("\n", " ");
    if (code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "") code = code.slice(1, -1);
    return this.put(element("code", code), end === undefined ? this.text.length : end + count);
  }

  takeAngle(at) {
    BREAK.lastIndex = ANGLED.lastIndex = at;
    if (BREAK.test(this.text)) return this.put(element("br"), BREAK.lastIndex);
    const match = ANGLED.exec(this.text);
    const address = match && safeAddress(match[1]);
    return address ? this.put(link(address, match[1].replace(/^mailto:/, "")), ANGLED.lastIndex) : null;
  }

  takeBare(at) {
    if (at > 0 && /[A-Za-z0-9]/.test(this.text[at - 1])) return null;
    BARE.lastIndex = at;
    let shown = BARE.exec(this.text)?.[0] ?? "";
    let end = shown.length;
    while (end > 0 && (/[.,;:!?*_~\]}\\]/.test(shown[end - 1]) || (shown[end - 1] === ")" && !shown.slice(0, end).includes("("))))
      end--;
    shown = shown.slice(0, end);
    const address = safeAddress(shown);
    return !address || this.brackets.length ? null : this.put(link(address, shown), at + end);
  }

  takeLink(at) {
    const bracket = this.brackets.pop();
    TARGET.lastIndex = at + 1;
    const match = bracket && TARGET.exec(this.text);
    const address = match && safeAddress(match[1] ?? match[2]);
    if (!address) return null;
    this.dropOpeners(bracket.height);
    const anchor = this.wrap(bracket.node, link(address));
    if (anchor === null) return null;
    bracket.node.remove();
    if (!anchor.hasChildNodes()) anchor.append(address);
    this.brackets = []; // a link holds no link
    return TARGET.lastIndex;
  }

  takeMark(char, at) {
    const { text } = this;
    let end = at;
    while (text[end] === char) end++;
    const before = text[at - 1] ?? " ";
    const after = text[end] ?? " ";
    const isWord = (c) => /[\p{L}\p{N}]/u.test(c);
    const isPlain = (c) => !/[\s\p{P}\p{S}]/u.test(c);
    const opens = !/\s/.test(after) && (isPlain(after) || !isPlain(before)) && !(char === "_" && isWord(before));
    const closesHere = !/\s/.test(before) && (isPlain(before) || !isPlain(after)) && !(char === "_" && isWord(after));
    let count = end - at;
    while (closesHere && count > 0 && this.counts[char] > 0) {
      const used = this.close(char, count);
      if (used === 0) break;
      count -= used;
    }
    if (count > 0) {
      const node = document.createTextNode(char.repeat(count));
      this.parent.append(node);
      if (opens) {
        this.openers.push({ node, char, height: this.brackets.length });
        this.counts[char]++;
      }
    }
    return end;
  }

  /** Close the last opener of this kind; returns how many marks that took, 0 for none. */
  close(char, count) {
    let index = this.openers.length - 1;
    while (this.openers[index].char !== char) index--;
    this.dropOpeners(index + 1);
    const opener = this.openers[index];
    const used = count >= 2 && opener.node.length >= 2 ? 2 : 1;
    const tag = MARKS[char][used - 1];
    if (tag === null) {
      this.dropOpeners(index);
      return 0;
    }
    if (this.wrap(opener.node, element(tag)) === null) return 0;
    this.brackets.length = Math.min(this.brackets.length, opener.height);
    opener.node.deleteData(0, used);
    if (opener.node.length === 0) {
      opener.node.remove();
      this.dropOpeners(index);
    }
    return used;
  }

  dropOpeners(height) {
    while (this.openers.length > height) this.counts[this.openers.pop().char]--;
  }

  /** Put what follows `node` into `made`, behind it; null where that would nest too deep, and for all that is open. */
  wrap(node, made) {
    let depth = 0;
    for (let next = node.nextSibling; next; next = next.nextSibling) depth = Math.max(depth, this.depths.get(next) ?? 0);
    if (depth >= MAX_DEPTH) {
      this.dropOpeners(0);
      this.brackets = [];
      return null;
    }
    while (node.nextSibling) made.append(node.nextSibling);
    this.depths.set(made, depth + 1);
    this.parent.append(made);
    return made;
  }

  /** While it is being written, bold text that was begun is bold. */
  closeBold() {
    const opener = this.openers.findLast(({ node, char }) => char === "*" && node.length === 2 && node.nextSibling);
    if (opener && this.wrap(opener.node, element("strong"))) opener.node.remove();
  }
}
