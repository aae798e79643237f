// Code with its language, coloured by highlight.js, and a button that copies it.

const CHUNK_LINES = 200; // of code in one element: what grows stays small
const MAX_COLOURED = 100_000; // characters; longer code has no colours
const MAX_COLOURED_OPEN = 10_000; // the same while more may come, since all of it is coloured anew

class CodeView {
  constructor() {
    this.code = element("code");
    this.name = element("span");
    const copy = element("button", "Copy");
    copy.type = "button";
    copy.className = "copy-code";
    copy.addEventListener("click", () => copyText(this.text.replace(/\n$/, ""), copy));
    const head = element("div", this.name, copy);
    head.className = "code-head";
    const pre = element("pre", this.code);
    pre.tabIndex = 0; // it scrolls sideways, by keyboard too
    this.element = element("div", head, pre);
    this.element.className = "code";
    this.clear();
  }

  clear() {
    this.text = "";
    this.chunk = null;
    this.numLines = 0;
    this.isColoured = false;
    this.code.replaceChildren();
  }

  /** Show `text`, which may be what is shown and more. */
  show(language, text, isOpen) {
    this.name.textContent = language || "text";
    const known = hljs.getLanguage(language);
    const isColoured = known !== undefined && text.length <= (isOpen ? MAX_COLOURED_OPEN : MAX_COLOURED);
    if (isColoured) {
      if (text !== this.text || !this.isColoured) this.colour(language, text);
      return;
    }
    if (this.isColoured || !text.startsWith(this.text)) this.clear();
    this.grow(text.slice(this.text.length));
    this.text = text;
  }

  colour(language, text) {
    this.clear();
    this.code.append(sanitized(hljs.highlight(text, { language, ignoreIllegals: true }).value));
    this.text = text;
    this.isColoured = true;
  }

  grow(text) {
    const lines = text.match(/.*\n|.+/g) ?? [];
    for (let i = 0; i < lines.length; ) {
      if (this.chunk === null || this.numLines >= CHUNK_LINES) {
        this.chunk = document.createTextNode("");
        const span = element("span", this.chunk);
        span.className = "chunk";
        this.code.append(span);
        this.numLines = 0;
      }
      const part = lines.slice(i, i + CHUNK_LINES - this.numLines);
      this.chunk.appendData(part.join(""));
      this.numLines += part.filter((line) => line.endsWith("\n")).length;
      i += part.length;
    }
  }
}
