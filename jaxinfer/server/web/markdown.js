// Markdown as DOM nodes, while it is still being written: read by markdown-it, made into nodes by DOMPurify, which lets
// through the elements below and nothing else. HTML is shown as it is written, and a link goes to http, https or mailto
// or is text.
//
// A block is settled once nothing can change it that comes later; only the rest is built again when more comes. For that,
// no line may change an earlier block, so that there are no reference links.

const MAX_NESTING = 100; // of blocks in blocks; markdown-it reads no deeper
const MAX_EMPHASIS = 40; // marks around a word; further ones are shown
const UNFINISHED = /^\s*(?:`{1,2}|~{1,2}|[-*+_]{1,2}|#{1,6}|\d{1,9}[.)]?|>|\\|\$)\s*$/; // a last line that may become either
const WEB = /^(?:https?:\/\/[^\s/]|mailto:)/i;
const CLEAN = {
  ALLOWED_TAGS: [
    ...["p", "br", "strong", "em", "s", "code", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote"],
    ...["hr", "table", "thead", "tbody", "tr", "th", "td", "a", "span", "div", "#text"],
  ],
  ALLOWED_ATTR: ["class", "href", "title", "start", "target", "rel"],
  ALLOWED_URI_REGEXP: WEB,
  ADD_URI_SAFE_ATTR: ["start", "target", "rel"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  KEEP_CONTENT: true,
  RETURN_DOM_FRAGMENT: true,
};

function element(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

/** Markup as nodes, without what could run, load or lead elsewhere. No other function makes nodes of markup. */
function sanitized(markup) {
  return DOMPurify.sanitize(markup, CLEAN);
}

sanitized(""); // DOMPurify takes its name as a trusted type's policy, which nobody else can then have

const markdown = newMarkdown();

function newMarkdown() {
  const md = markdownit({ html: false, breaks: true, linkify: true, maxNesting: MAX_NESTING });
  md.disable(["reference", "code", "lheading"]); // what models do not mean
  md.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
  md.validateLink = (address) => WEB.test(address) && URL.canParse(address);
  md.use(math);
  md.inline.ruler.before("backticks", "open_code", openCode);
  md.inline.ruler.before("autolink", "line_break", lineBreak);
  md.inline.ruler2.before("balance_pairs", "open_bold", openBold);
  md.inline.ruler2.after("balance_pairs", "shallow", shallow);
  md.core.ruler.after("block", "last", (state) => void (state.env.last = state.tokens.findLast(({ type }) => type === "inline")));
  md.core.ruler.after("inline", "boxes", boxes);
  const { rules } = md.renderer;
  rules.link_open = (tokens, at) => linkTo(md, tokens[at].attrGet("href"));
  rules.image = (tokens, at) => {
    const address = tokens[at].attrGet("src");
    return `${linkTo(md, address)}${md.utils.escapeHtml(tokens[at].content || address)}</a>`; // nothing is loaded
  };
  for (const name of ["th_open", "td_open"]) rules[name] = (tokens, at) => cell(tokens[at]);
  rules.fence = (tokens, at) => {
    const language = md.utils.escapeHtml(languageOf(tokens[at]));
    return `<pre title="${language}"><code>${md.utils.escapeHtml(tokens[at].content)}</code></pre>`;
  };
  return md;
}

function languageOf({ info }) {
  return info.trim().split(/\s/, 1)[0];
}

function linkTo(md, address) {
  const shown = md.utils.escapeHtml(address);
  return `<a href="${shown}" title="${shown}" target="_blank" rel="noopener noreferrer">`;
}

function cell(token) {
  const side = /text-align:(right|center)/.exec(token.attrGet("style") ?? "")?.[1];
  return side ? `<${token.tag} class="${side}">` : `<${token.tag}>`;
}

/** "- [ ]" begins something to do. */
function boxes({ tokens }) {
  tokens.forEach((token, i) => {
    const first = token.children?.[0];
    if (tokens[i - 2]?.type !== "list_item_open" || first?.type !== "text") return;
    first.content = first.content.replace(/^\[([ xX])\] /, (_, mark) => (mark === " " ? "\u2610 " : "\u2611 "));
  });
}

function lineBreak(state, silent) {
  const match = /^<br ?\/?>/i.exec(state.src.slice(state.pos, state.pos + 6));
  if (match && !silent) state.push("hardbreak", "br", 0);
  if (match) state.pos += match[0].length;
  return match !== null;
}

/** Whether it is the end of a text that is still being written. */
function isLast(state) {
  return Boolean(state.env.isOpen) && state.tokens === state.env.last?.children && state.posMax === state.src.length;
}

/** While it is being written, code that was begun is code. */
function openCode(state, silent) {
  const { src, pos } = state;
  if (silent || !isLast(state) || src[pos] !== "`" || src.includes("`", pos + 1)) return false;
  state.push("code_inline", "code", 0).content = src.slice(pos + 1);
  state.pos = state.posMax;
  return true;
}

/** While it is being written, bold text that was begun is bold. */
function openBold(state) {
  if (!isLast(state)) return;
  const { delimiters, tokens } = state;
  const opener = delimiters.findLastIndex(({ marker, open }) => marker === 0x2a && open);
  const isBold = opener > 0 && delimiters[opener - 1].token === delimiters[opener].token - 1;
  if (!isBold || delimiters[opener].token === tokens.length - 1) return;
  if (delimiters.slice(opener + 1).some(({ marker, close }) => marker === 0x2a && close)) return;
  for (let i = 0; i < 2; i++) {
    state.push("text", "", 0);
    delimiters.push({ marker: 0x2a, length: 2, token: tokens.length - 1, end: -1, open: false, close: true });
  }
}

/** Emphasis within emphasis has an end, since nodes that nest without one cost the browser seconds. */
function shallow({ delimiters }) {
  const ends = [];
  delimiters.forEach((delimiter, i) => {
    while (ends.length && ends.at(-1) < i) ends.pop();
    if (delimiter.end < 0) return;
    if (ends.length < MAX_EMPHASIS) ends.push(delimiter.end);
    else delimiter.end = -1;
  });
}

/** The blocks of a text that lie in no other, each with the line where it begins. */
function blocksOf(text, isOpen) {
  const blocks = [];
  for (const token of markdown.parse(text, { isOpen })) {
    if (token.level === 0 && token.nesting >= 0) blocks.push({ from: token.map[0], to: token.map[1], tokens: [] });
    blocks.at(-1).tokens.push(token);
  }
  return blocks;
}

/** How many blocks nothing can change that comes later: all but the last, and what that may yet turn out to go on with. */
function countSettled(blocks, lines) {
  const last = blocks.length - 1;
  if (last < 1) return 0;
  const isApart = lines[blocks[last].from - 1].trim() === "" && !blocks[last - 1].tokens[0].type.endsWith("_list_open");
  return isApart ? last : last - 1;
}

/** Shows a text that grows in `container`. Invariant: the nodes of `open` are the last ones and show source[settled:], and
 * `code` shows the first block of them, if that is code. */
class MarkdownView {
  constructor(container) {
    this.container = container;
    this.reset();
  }

  reset() {
    this.source = "";
    this.settled = 0;
    this.outline = []; // of the settled blocks, see setLevels
    this.open = [];
    this.code = null;
    this.container.replaceChildren();
  }

  /** isOpen: more may come; then what is begun at the end, bold text say, counts as ended there. */
  update(source, isOpen = false) {
    if (!source.startsWith(this.source)) this.reset();
    this.source = source;
    const lines = source.slice(this.settled).split("\n");
    const known = isOpen && UNFINISHED.test(lines.at(-1)) ? lines.slice(0, -1) : lines;
    const blocks = blocksOf(known.join("\n"), isOpen);
    const numSettled = countSettled(blocks, known);
    const stop = blocks[numSettled]?.from ?? 0;
    for (const node of this.open) if (node !== this.code?.element) node.remove();
    const done = [];
    if (numSettled) {
      done.push(...this.build(blocksOf(known.slice(0, stop).join("\n"), false), known, false));
      setLevels(done, this.outline);
      this.code = null;
    }
    this.open = this.build(blocks.slice(numSettled), known, isOpen);
    setLevels(this.open, [...this.outline]);
    for (const node of [...done, ...this.open]) if (node.parentNode !== this.container) this.container.append(node);
    this.settled += lines.slice(0, stop).reduce((sum, line) => sum + line.length + 1, 0);
  }

  /** The nodes of some blocks. The first of them may be the code that is shown. */
  build(blocks, lines, isOpen) {
    const shown = this.code;
    this.code = null;
    const nodes = blocks.flatMap((block, i) => {
      const [token] = block.tokens;
      const isDeep = block.tokens.some(({ level }) => level >= MAX_NESTING - 1);
      if (token.type !== "fence" && !isDeep) return nodesOf(block.tokens);
      const view = i === 0 && shown ? shown : new CodeView();
      if (i === 0) this.code = view;
      const text = isDeep ? lines.slice(block.from, block.to).join("\n") : token.content;
      view.show(isDeep ? "" : languageOf(token), text, isOpen);
      return [view.element];
    });
    if (shown && this.code !== shown) shown.element.remove();
    return nodes;
  }
}

/**
 * Say the level of each heading to those who hear the page: the page's title is 1, an answer's first headings are 2, and
 * none is deeper than the one before by more than 1, whatever levels the model took. outline: the levels as written of
 * the headings that the next one may be under; it is changed.
 */
function setLevels(nodes, outline) {
  for (const node of nodes) {
    const found = node.querySelectorAll("h1, h2, h3, h4, h5, h6");
    for (const heading of /^H[1-6]$/.test(node.tagName) ? [node] : found) {
      const written = Number(heading.tagName[1]);
      while (outline.at(-1) >= written) outline.pop();
      outline.push(written);
      heading.setAttribute("aria-level", outline.length + 1);
    }
  }
}

function nodesOf(tokens) {
  const fragment = sanitized(markdown.renderer.render(tokens, markdown.options, {}));
  showMath(fragment);
  for (const pre of fragment.querySelectorAll("pre")) {
    const view = new CodeView();
    view.show(pre.title, pre.textContent, false);
    pre.replaceWith(view.element);
  }
  for (const table of fragment.querySelectorAll("table")) {
    const scroller = element("div");
    scroller.className = "table";
    scroller.tabIndex = 0;
    table.replaceWith(scroller);
    scroller.append(table);
  }
  return [...fragment.childNodes].filter((node) => node.nodeType === Node.ELEMENT_NODE || node.data.trim());
}
