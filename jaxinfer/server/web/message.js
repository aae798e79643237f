// How a message looks, and what can be done with it.

const ENDS = {
  __proto__: null, // an imported answer may name any end
  length: "Ended at the token limit.",
  tool_calls: "The model calls a tool. This page runs none.",
  abort: "Ended by the server.",
  stopped: "Stopped.",
  unknown: "The imported file does not say how this answer ended.",
};
const EDITED = "Edited by you.";
const CAN_GO_ON = ["length", "stopped", "abort", "edited", "unknown"];
const FOLDED = { chars: 1500, lines: 15 }; // a message of more is folded
const FACTS = {
  model: ["Model", String],
  promptTokens: ["Prompt", numTokens],
  cachedTokens: ["Cached", numTokens],
  tokens: ["Answer", numTokens],
  tokensPerS: ["Speed", rate],
  firstMs: ["First token", seconds],
  queue_time_ms: ["Queue", seconds],
  prefill_time_ms: ["Prefill", seconds],
  mean_itl_ms: ["Between tokens", seconds],
  total_time_ms: ["Time in the server", seconds],
  preemptions: ["Preempted", (n) => `${n} times`],
  alone: ["Session refused", String],
};

/** One message. `page` is told what its buttons ask for: regenerate, goOn, choose, send, replace, edit, askForKey,
 * openSettings, newChat. Its `drafts` hold edits that are not done. */
class MessageView {
  constructor(conversation, at, page) {
    Object.assign(this, { conversation, at, page });
    this.isUser = this.node.role === "user";
    this.body = element("div");
    this.body.className = "body";
    this.actions = element("div");
    this.actions.className = "actions";
    this.element = element("article", this.body, this.actions);
    this.element.className = this.isUser ? "message user" : "message assistant";
    this.element.setAttribute("aria-label", this.isUser ? "You" : "Answer");
    if (!this.isUser) this.makeAnswer();
    this.refresh();
  }

  get node() {
    return this.conversation.nodes[this.at];
  }

  /** What went wrong, if anything did: an answer without an end is one whose page was closed. */
  get error() {
    const { error } = this.node;
    if (!isUnfinished(this.node) || this.page.isRunning(this.conversation, this.at)) return error;
    return { message: CUT };
  }

  makeAnswer() {
    this.summary = element("summary");
    const thinking = element("div");
    thinking.className = "text";
    this.thinking = element("details", this.summary, thinking);
    this.thinking.className = "thinking";
    this.thinking.addEventListener("toggle", () => this.showText());
    this.thoughts = new MarkdownView(thinking);
    const answer = element("div");
    answer.className = "text";
    this.answer = new MarkdownView(answer);
    this.end = element("p");
    this.end.className = "end";
    this.facts = element("dl");
    this.facts.className = "facts";
    this.facts.hidden = true;
    this.calls = element("div");
    this.body.append(this.thinking, answer, this.calls, this.end);
    this.parts = [...this.body.children];
    this.element.append(this.facts);
  }

  /** Show all of it anew. */
  refresh() {
    if (this.isUser) this.showAsked();
    else {
      this.showText();
      this.showEnd();
      this.showFacts();
    }
    this.showActions();
  }

  /** What the user said: folded, if it is long. */
  showAsked() {
    const { text, files } = this.node;
    const isFolded = !this.body.querySelector(".fold[aria-expanded=true]");
    const said = element("div", text);
    said.className = "said";
    this.body.replaceChildren(...(files?.length ? [chips(files)] : []), ...(text ? [said] : []));
    const numLines = text.split("\n").length;
    if (text.length <= FOLDED.chars && numLines <= FOLDED.lines) return;
    said.classList.toggle("folded", isFolded);
    const button = textButton("", () => show(said.classList.toggle("folded")), "fold");
    const show = (isFolded) => {
      button.textContent = isFolded ? `Show all ${number.format(text.length)} characters` : "Show less";
      button.setAttribute("aria-expanded", String(!isFolded));
    };
    show(isFolded);
    this.body.append(button);
  }

  unfold() {
    this.body.querySelector(".fold[aria-expanded=false]")?.click();
  }

  /** The tools that the model calls, with what it passes them. */
  showCalls() {
    const made = (this.node.calls ?? []).map(({ name, arguments: passed }) => {
      const view = new CodeView();
      view.show("json", indented(passed), false);
      const call = element("details", element("summary", "Calls ", element("code", name)), view.element);
      call.className = "call";
      call.open = true;
      return call;
    });
    this.calls.replaceChildren(...made);
  }

  /** Show the text there is so far. */
  showText() {
    const isOpen = this.page.isRunning(this.conversation, this.at);
    const { thinking, answer, isThinking } = splitThinking(this.node);
    this.thinking.hidden = !thinking;
    const { thoughtMs, calls } = this.node;
    const short = thoughtMs < 1000 ? "Thought for less than a second" : `Thought for ${seconds(thoughtMs)}`;
    this.summary.textContent = isThinking && isOpen ? "Thinking" : thoughtMs ? short : "Thoughts";
    this.summary.classList.toggle("busy", isThinking && isOpen);
    if (this.thinking.open) this.thoughts.update(thinking, isOpen && isThinking);
    this.answer.update(answer, isOpen);
    this.showCalls();
    this.element.classList.toggle("waiting", isOpen && !thinking && !answer && !calls?.length);
    this.element.classList.toggle("running", isOpen);
  }

  showEnd() {
    const { end, isEdited } = this.node;
    const { error } = this;
    const said = [(isEdited || end === "edited") && EDITED, error?.message ?? ENDS[end]].filter(Boolean).join(" ");
    this.end.hidden = !said;
    this.end.className = error ? "end error" : "end";
    this.end.replaceChildren(said, ...(error ? this.cures(error) : []));
  }

  /** Buttons for what may help. A conversation that is too long is refused again, however often it is sent. */
  cures({ isKey, tooLong }) {
    if (tooLong === undefined) {
      const again = textButton("Try again", () => this.page.regenerate(this.at));
      return isKey ? [textButton("Enter a key", () => this.page.askForKey()), again] : [again];
    }
    const edit = textButton("Edit the question", () => this.page.edit(this.node.parent));
    const other = textButton("New chat", () => this.page.newChat());
    return tooLong === "max_tokens" ? [textButton("Settings", () => this.page.openSettings()), edit, other] : [edit, other];
  }

  showFacts() {
    const stats = this.node.stats ?? {};
    const rows = Object.entries(FACTS).filter(([name]) => (stats[name] ?? 0) !== 0);
    this.facts.replaceChildren(...rows.flatMap(([name, [label, shown]]) => [element("dt", label), element("dd", shown(stats[name]))]));
  }

  showActions() {
    const isOpen = this.page.isRunning(this.conversation, this.at);
    const isBusy = this.page.isRunning(this.conversation);
    const { index, count } = versionOf(this.conversation, this.at);
    const made = [];
    if (count > 1) {
      const before = iconButton("before", "Previous version", () => this.page.choose(this.at, -1));
      const after = iconButton("after", "Next version", () => this.page.choose(this.at, 1));
      before.disabled = isBusy || index === 0;
      after.disabled = isBusy || index === count - 1;
      const shown = element("span", `${index + 1} / ${count}`);
      shown.className = "version";
      made.push(before, shown, after);
    }
    const copy = iconButton("copy", "Copy", () => copyText(this.isUser ? this.node.text : splitThinking(this.node).answer, copy));
    if (!isOpen && this.node.text) made.push(copy);
    if (this.isUser) made.push(iconButton("edit", "Edit", () => this.edit()));
    else if (!isOpen) {
      if (this.node.text && CAN_GO_ON.includes(this.node.end ?? "stopped")) made.push(iconButton("on", "Continue", () => this.page.goOn(this.at)));
      if (this.node.text) made.push(iconButton("edit", "Edit the answer", () => this.edit()));
      if (!this.error || this.error.tooLong !== undefined) made.push(iconButton("again", "Regenerate", () => this.page.regenerate(this.at)));
      if (this.node.stats?.tokens) made.push(this.factsButton());
    }
    for (const button of made) if (isBusy && ["Edit", "Edit the answer", "Continue", "Regenerate"].includes(button.title)) button.disabled = true;
    replaceFocused(this.actions, ...made);
  }

  factsButton() {
    const { tokens, tokensPerS } = this.node.stats;
    const button = iconButton("facts", "Measures of this answer", () => {
      this.facts.hidden = !this.facts.hidden;
      button.setAttribute("aria-expanded", String(!this.facts.hidden));
      if (!this.facts.hidden) this.facts.scrollIntoView({ block: "nearest" });
    });
    button.setAttribute("aria-expanded", String(!this.facts.hidden));
    const short = element("span", `${numTokens(tokens)}${tokensPerS ? `, ${rate(tokensPerS)}` : ""}`);
    short.className = "short";
    button.setAttribute("aria-label", `${short.textContent}: measures of this answer`);
    button.append(short);
    return button;
  }

  get isEditing() {
    return this.element.classList.contains("editing");
  }

  /** Let a message be written again; the result becomes a new version of it. A question is then answered. begun: an edit
   * that goes on where it was left, { text, files }. */
  edit(begun = null) {
    if (this.isEditing) return;
    const { conversation, at } = this;
    const { drafts } = this.page;
    const area = element("textarea");
    area.rows = 1;
    area.value = begun?.text ?? this.node.text;
    area.setAttribute("aria-label", "Edit the message");
    this.element.classList.add("editing");
    this.actions.replaceChildren();
    const files = [...(begun?.files ?? this.node.files ?? [])];
    const keep = () => drafts.keepEdit(conversation, at, { text: area.value, files });
    const attached = element("div");
    showRemovable(attached, files, () => {
      keep();
      area.focus();
    });
    const close = () => {
      drafts.endEdit(conversation, at, this.page.current);
      this.element.classList.remove("editing");
      if (!this.isUser) this.body.replaceChildren(...this.parts);
      this.refresh();
      this.page.focusInput();
    };
    const submit = async () => {
      if (!area.value.trim() && !files.length) return;
      if (!this.isUser) {
        if (this.page.replace(at, area.value)) close();
        return;
      }
      if (!this.page.canAsk(conversation)) return;
      area.readOnly = true;
      this.page.focusInput(); // what is typed from now on is the next message
      if (await this.page.send(area.value, [...files], this.node.parent)) return close();
      area.readOnly = false;
      area.focus();
    };
    area.addEventListener("input", () => {
      fit(area);
      keep();
    });
    area.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" && !isSending(event)) return;
      event.preventDefault();
      event.stopPropagation();
      if (event.key === "Escape") close();
      else submit();
    });
    const buttons = element("div", textButton("Cancel", close, "quiet"), textButton(this.isUser ? "Send" : "Save", submit, "main"));
    buttons.className = "buttons";
    this.body.replaceChildren(attached, area, buttons);
    fit(area);
    if (begun) return; // the focus stays where it is
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
    buttons.scrollIntoView({ block: "nearest" });
  }
}

/** JSON for people; what is none, or is not whole yet, as it is. */
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch (error) {
    console.info(error.message);
    return text;
  }
}
