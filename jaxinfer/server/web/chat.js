// The page: its conversations, the answers under way, and what the keys and buttons do.

const EXAMPLES = ["What is 7 plus 5?", "Tell me a short story.", "Spell the word \u201cpepper\u201d."];
const RETRY_S = 2;
const START_MS = 1000;
const SAVE_MS = 2000;
const METER_MS = 250;
const RATED_MS = 200; // what comes in less has come at once
const THINK_CHARS = "</think>".length;
const NEAR_END_PX = 48;
const ELSEWHERE = "Another tab is answering this conversation. You can go on here when the answer has ended.";
const PROMPT_TOKENS = /your prompt has (\d+)/; // as the server says of a conversation that is too long

/** What is said of a server whose model is not there yet. start: of /load, how far it is. */
function startOf(start) {
  const { stage, done, total } = start ?? {};
  if (!total) return { text: "Loading the model" };
  const share = done / total;
  const next = Math.min(done + 1, total);
  const doing = {
    __proto__: null, // a stage may have any name
    load: `${Math.floor(100 * share)} % of its weights`,
    compile: `compiling ${next} of ${total}`,
    run: `running step ${next} of ${total} once more`,
    wait: `${done} of ${total} engines are ready`,
  }[stage];
  return { text: ["Loading the model", doing ?? stage].filter(Boolean).join(", "), share };
}

/** Invariant: at most one answer of a conversation is under way, in all tabs; `runs` holds those of this tab as long. */
class Page {
  constructor() {
    this.server = new Server();
    this.troubles = { server: null, turn: null, store: null };
    this.store = new Store((text) => this.trouble("store", text && { text }));
    this.turns = new Turns((id) => this.reload(id));
    this.settings = new SettingsDialog((name, value) => this.set(name, value));
    this.sidebar = new Sidebar(this);
    this.attachments = new Attachments(() => this.showSend());
    this.drafts = new Drafts(this.attachments);
    this.conversations = new Map();
    this.runs = new Map();
    this.asking = new Set(); // conversations that wait for their turn
    this.views = new Map();
    this.isStarting = false;
    this.faultNotice = "";
    this.follows = true;
    this.isPainting = false;
    this.restUntil = 0;
    this.current = newConversation({});
  }

  async start() {
    this.listen();
    this.sidebar.listen();
    this.show();
    const connected = this.connect();
    for (const found of await this.store.open((id) => this.reload(id))) this.conversations.set(found.id, found);
    this.drafts.restore(this.conversations);
    const shown = session.getItem("conversation");
    const blank = this.drafts.blank?.id === shown ? this.drafts.blank : this.current;
    const isUsed = this.asking.has(this.current.id) || this.current.nodes.length > 1; // somebody was quick
    if (!isUsed) this.current = this.conversations.get(shown) ?? blank;
    this.drafts.giveBack(this.current, this.current, this.drafts.draftOf(this.current));
    for (const each of this.conversations.values()) this.look(each);
    this.open(this.current);
    await connected;
  }

  // The server

  async connect() {
    clearTimeout(this.retryTimer);
    let isStarting = false;
    try {
      await this.server.json("/health");
      const { data } = await this.server.json("/v1/models");
      this.server.models = data;
      this.settings.showDefaults(data[0]);
      this.trouble("server", null);
    } catch (error) {
      if (!(error instanceof Refusal || error instanceof Unreachable)) throw error;
      isStarting = error.code === "starting";
      const isKey = error.status === 401;
      if (isStarting) await this.showStart();
      else this.trouble("server", { text: error.message, ...(isKey && this.keyCure()) });
      const waitMs = isStarting ? START_MS : 1000 * Math.max(RETRY_S, error.retryAfterS ?? 0);
      if (!isKey) this.retryTimer = setTimeout(() => this.connect(), waitMs);
    }
    this.isStarting = isStarting;
    this.showModel();
    this.showSend();
  }

  /** Say how far the server's start is. Where the server does not tell it this time, what was said stays. */
  async showStart() {
    try {
      this.trouble("server", startOf((await this.server.json("/load")).start));
    } catch (error) {
      console.info(error.message);
      if (error.status === 401) this.trouble("server", { text: `${startOf().text}. ${error.message}`, ...this.keyCure() });
      else if (!this.isStarting) this.trouble("server", startOf());
    }
  }

  keyCure() {
    return { action: "Enter a key", onClick: () => this.askForKey() };
  }

  askForKey() {
    byId("key").value = this.server.key;
    byId("keep-key").checked = prefs.getItem("api-key") !== null;
    byId("key-dialog").showModal();
    byId("key").select();
  }

  trouble(kind, trouble) {
    this.troubles[kind] = trouble || null;
    const shown = this.troubles.server ?? this.troubles.turn ?? this.troubles.store;
    const banner = byId("banner");
    const [said, bar, button] = banner.children;
    bar.hidden = shown?.share === undefined;
    bar.value = shown?.share ?? 0;
    banner.hidden = !shown;
    if (said.textContent !== (shown?.text ?? "")) {
      hushOf(said.textContent);
      said.textContent = shown?.text ?? "";
      const isAsked = shown?.action && byId("key-dialog").open;
      if (shown && bar.hidden && openDialog() && !isAsked) notify(shown.text, shown.action, shown.onClick); // the banner is beneath it
    }
    button.hidden = !shown?.action;
    button.textContent = shown?.action ?? "";
    button.onclick = shown?.onClick ?? null;
  }

  // Conversations

  open(conversation) {
    hushIfRead();
    CSS.highlights?.clear();
    this.drafts.change(this.current, conversation);
    this.current = conversation;
    remember(session, "conversation", conversation.id);
    this.views.clear();
    byId("log").replaceChildren();
    this.follows = true;
    this.show();
    this.toEnd();
    this.focusInput();
  }

  /** A conversation without messages: the one that is shown or has a draft or settings of its own, or a new one. */
  get blank() {
    const blank = [this.current, this.drafts.blank].find((each) => each?.nodes.length === 1);
    return blank ?? newConversation(this.current.settings);
  }

  newChat() {
    this.open(this.blank);
    this.sidebar.closeIfNarrow();
  }

  /** Show where a message of this conversation has `sought`. */
  showPlace(at, sought) {
    choosePath(this.current, at);
    this.show();
    const view = this.views.get(at);
    view.unfold();
    this.follows = false;
    (markPlaces(view.body, sought) ?? view.element).scrollIntoView({ block: "center" });
    view.element.tabIndex = -1;
    view.element.focus({ preventScroll: true });
    this.keepAtEnd();
  }

  async save(conversation) {
    conversation.saved = Date.now();
    await this.put(conversation);
  }

  /** Save it as it is: what was made elsewhere, or earlier, was not changed now. */
  async put(conversation) {
    if (conversation.nodes.length === 1) return;
    this.conversations.set(conversation.id, conversation);
    await this.store.put(conversation);
  }

  /** Another tab has changed a conversation, or begun or ended an answer. */
  async reload(id) {
    if (this.runs.has(id)) return;
    const found = await this.store.get(id);
    if (this.runs.has(id)) return;
    const gone = !found && this.conversations.get(id);
    if (found) this.adopt(found);
    else this.conversations.delete(id);
    if (gone) this.rescue(gone);
    const looked = found && this.look(this.conversations.get(id));
    this.finish(this.conversations.get(id));
    await looked;
  }

  /** What is typed in a conversation that another tab has deleted is a new chat's draft. */
  rescue(gone) {
    const { drafts } = this;
    drafts.keep(this.current, drafts.shown);
    const typed = [drafts.draftOf(gone), ...(drafts.edits.get(gone.id)?.values() ?? [])].filter(isSome);
    if (!typed.length) return;
    const { blank } = this;
    if (gone === this.current) this.open(blank);
    for (const each of [drafts.kept, drafts.edits]) each.delete(gone.id);
    for (const each of typed) drafts.giveBack(blank, this.current, each);
    notify(`Another tab deleted \u201c${gone.title}\u201d. What you typed there is in a new chat.`);
  }

  /** Have what another tab has saved in the conversation that is shown: its messages keep their elements. */
  adopt(found) {
    const known = found.id === this.current.id ? this.current : this.conversations.get(found.id);
    this.conversations.set(found.id, known ? Object.assign(known, found) : found);
  }

  /** See who answers a conversation that has an answer without an end: another tab, or nobody any more. */
  async look(conversation) {
    if (!conversation.nodes.some(isUnfinished)) return;
    try {
      if (await this.turns.look(conversation.id)) this.finish(conversation);
    } catch (error) {
      this.trouble("store", { text: `This browser does not say whether another tab is open: ${error.message}` });
    }
  }

  /** Whether another tab may be answering a conversation, so that this one may not write it. If so, it is said. */
  isHeldBack({ id }) {
    const isHeld = this.turns.mayBeElsewhere(id);
    if (isHeld) notify(ELSEWHERE);
    return isHeld;
  }

  remove(conversation) {
    if (this.isHeldBack(conversation)) return;
    this.runs.get(conversation.id)?.controller.abort();
    this.conversations.delete(conversation.id);
    this.store.remove(conversation.id);
    this.server.endSession(conversation.id);
    if (conversation === this.current) this.open(this.blank);
    else this.sidebar.show();
    notify(`Deleted \u201c${conversation.title}\u201d.`, "Undo", () => {
      this.put(conversation);
      this.open(conversation);
    });
  }

  rename(conversation, title) {
    if (!title.trim() || this.isHeldBack(conversation)) return;
    Object.assign(conversation, { title: title.trim(), isNamed: true });
    this.save(conversation);
    this.show();
  }

  /** Returns whether the setting was changed. */
  set(name, value) {
    const isHeld = this.isHeldBack(this.current);
    if (isHeld) this.settings.fill(this.current.settings);
    else {
      this.current.settings[name] = value;
      this.current.isSet = true;
      this.save(this.current);
      this.showChosen();
    }
    return !isHeld;
  }

  // Messages

  /** Whether an answer is under way in any tab: message `at`, or any. Of another tab's it is not known which it is. */
  isRunning({ id, nodes }, at) {
    const run = this.runs.get(id);
    if (run) return at === undefined || run.at === at;
    if (this.asking.has(id) && at === undefined) return true;
    return this.turns.mayBeElsewhere(id) && (at === undefined || isUnfinished(nodes[at]));
  }

  /** Whether an answer may be asked for now. The server would refuse settings that are wrong: say what is. */
  canAsk(conversation) {
    const { id, settings } = conversation;
    if (this.runs.has(id) || this.asking.has(id) || this.isHeldBack(conversation)) return false;
    const fault = faultIn(settings);
    if (fault) {
      this.faultNotice = `${fault}.`;
      notify(this.faultNotice, "Settings", () => this.openSettings());
    }
    return !fault;
  }

  /** Take the turn to answer a conversation. Returns whether this tab has it: it must then call `answer`. */
  async takeTurn(conversation) {
    if (!this.canAsk(conversation)) return false;
    if (!this.store.database) return true; // no other tab has the conversation
    const { id } = conversation;
    let isTaken = false;
    this.asking.add(id);
    this.finish(conversation);
    try {
      isTaken = await this.turns.take(id);
      const found = await this.store.get(id);
      if (found?.changed > conversation.changed) Object.assign(conversation, found); // as a tab that slept has not heard
      if (!isTaken) notify(ELSEWHERE);
    } catch (error) {
      this.turns.give(id);
      isTaken = false;
      notify(`Nothing was sent. The browser says: ${error.message}`);
    }
    this.asking.delete(id);
    if (!isTaken) this.finish(conversation);
    return isTaken;
  }

  /** Say something after message `parent`, or at the end. It is the newest version of what was said there. Returns
   * whether it was sent. */
  async send(text, files = [], parent = null) {
    const conversation = this.current;
    if ((!text.trim() && !files.length) || !(await this.takeTurn(conversation))) return false;
    const after = parent ?? pathOf(conversation).at(-1) ?? 0;
    const at = addMessage(conversation, after, { role: "user", text: text.trim(), ...(files.length && { files }) });
    this.answer(conversation, at);
    return true;
  }

  async regenerate(at) {
    const conversation = this.current;
    if (!(await this.takeTurn(conversation))) return;
    this.answer(conversation, conversation.nodes[at].parent);
    this.focusInput();
  }

  /** Let the model go on with an answer that has ended. */
  async goOn(at) {
    const conversation = this.current;
    if (!(await this.takeTurn(conversation))) return;
    const node = conversation.nodes[at];
    if (node.end === "edited") node.isEdited = true;
    delete node.end;
    delete node.error;
    this.answer(conversation, node.parent, at);
    this.focusInput();
  }

  /** An answer in the user's own words, as a version of it. Returns whether it was taken. */
  replace(at, text) {
    if (this.isHeldBack(this.current)) return false;
    const { parent, thinking } = this.current.nodes[at];
    addMessage(this.current, parent, { role: "assistant", text, end: "edited", ...(thinking && { thinking }) });
    this.save(this.current);
    this.show();
    return true;
  }

  choose(at, step) {
    const conversation = this.current;
    if (this.isHeldBack(conversation)) return;
    chooseVersion(conversation, at, step);
    this.save(conversation);
    this.show();
    const { children, chosen } = conversation.nodes[conversation.nodes[at].parent];
    const buttons = this.views.get(children[chosen]).actions.querySelectorAll("button:not(:disabled)");
    (buttons[step > 0 && buttons[1]?.title === "Next version" ? 1 : 0] ?? byId("input")).focus();
  }

  stop() {
    this.runs.get(this.current.id)?.controller.abort();
  }

  /** Ask for an answer to message `parent`, or for the rest of answer `begun`. The turn is this tab's, and ends with it. */
  async answer(conversation, parent, begun = null) {
    const messages = messagesFor(conversation, begun ?? parent);
    const at = begun ?? addMessage(conversation, parent, { role: "assistant", text: "" });
    const run = { conversation, at, controller: new AbortController(), beganMs: performance.now(), firstMs: null, savedMs: 0, tail: "" };
    this.runs.set(conversation.id, run);
    hushIfRead();
    this.follows = true;
    this.save(conversation);
    this.show();
    this.toEnd();
    try {
      const model = this.server.models[0]?.id;
      const body = { model, messages, ...fieldsOf(conversation.settings), stream: true, include_metrics: true };
      if (begun !== null) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
      body.stream_options = { include_usage: true, continuous_usage_stats: true };
      const chunks = this.server.streamTurn(conversation.id, body, run.controller.signal, (why) => (run.alone = why));
      for await (const chunk of chunks) this.take(run, chunk);
    } catch (error) {
      this.fail(conversation.nodes[at], error);
    } finally {
      conversation.changed = Date.now();
      if (this.conversations.has(conversation.id)) await this.save(conversation); // before another tab may write it
      this.runs.delete(conversation.id);
      this.turns.give(conversation.id);
      this.finish(conversation);
    }
  }

  /** A piece of an answer. */
  take(run, chunk) {
    const node = run.conversation.nodes[run.at];
    const nowMs = performance.now();
    const stats = (node.stats ??= { model: chunk.model, alone: run.alone });
    const [choice] = chunk.choices;
    if (choice && run.firstMs === null) {
      run.firstMs = nowMs;
      stats.firstMs = nowMs - run.beganMs;
    }
    if (choice) this.append(run, node, choice.delta);
    if (choice?.finish_reason) node.end = choice.finish_reason;
    if (chunk.usage) {
      stats.promptTokens = chunk.usage.prompt_tokens;
      stats.cachedTokens = chunk.usage.prompt_tokens_details?.cached_tokens;
      stats.tokens = chunk.usage.completion_tokens;
      if (choice && nowMs - run.firstMs > RATED_MS) stats.tokensPerS = (1000 * (stats.tokens - 1)) / (nowMs - run.firstMs);
    }
    Object.assign(stats, chunk.metrics);
    if (stats.mean_itl_ms) stats.tokensPerS = 1000 / stats.mean_itl_ms; // as the engine made them, not as they came
    if (nowMs - run.savedMs > SAVE_MS) {
      run.savedMs = nowMs;
      this.save(run.conversation);
    }
    this.paint(run);
  }

  /** Add what was said, and see when the thinking ends. The text is not read: it may be long, and pieces are many. */
  append(run, node, { content, reasoning_content: thought, tool_calls: calls }) {
    content ??= "";
    for (const { index, function: part } of calls ?? []) {
      const call = ((node.calls ??= [])[index] ??= { name: "", arguments: "" });
      call.name += part?.name ?? "";
      call.arguments += part?.arguments ?? "";
    }
    if (thought) node.thinking = (node.thinking ?? "") + thought;
    node.text += content;
    const tail = run.tail + content;
    if (node.thoughtMs === undefined && (tail.includes("</think>") || (node.thinking && content)))
      node.thoughtMs = performance.now() - run.firstMs;
    run.tail = tail.slice(-THINK_CHARS);
  }

  fail(node, error) {
    if (error.name === "AbortError") node.end = "stopped";
    else if (error instanceof Refusal || error instanceof Unreachable)
      node.error = { message: error.message, isKey: error.status === 401, ...(error.code === TOO_LONG && { tooLong: error.param ?? "" }) };
    else {
      node.error = { message: `This page failed: ${error.message}` };
      throw error;
    }
    const [, count] = (error.code === TOO_LONG && PROMPT_TOKENS.exec(error.message)) || [];
    if (count) node.stats ??= { promptTokens: Number(count) };
    if (node.error?.isKey) this.connect();
  }

  finish(conversation) {
    if (conversation === this.current) {
      this.show();
      this.keepAtEnd();
    } else this.sidebar.show();
  }

  /** Show what has come, in the next frame; after a slow one not at once, so that the page has time for its user. */
  paint(run) {
    if (this.isPainting || run.conversation !== this.current) return;
    this.isPainting = true;
    const draw = () => {
      this.isPainting = false;
      if (run.conversation !== this.current || !this.runs.has(run.conversation.id)) return;
      const beganMs = performance.now();
      this.views.get(run.at)?.showText();
      this.keepAtEnd();
      if (beganMs - (this.meteredMs ?? 0) > METER_MS) this.showMeter();
      this.restUntil = performance.now() + Math.min(1000, 6 * (performance.now() - beganMs));
    };
    setTimeout(() => requestAnimationFrame(draw), Math.max(0, this.restUntil - performance.now()));
  }

  // What is shown

  /** Show the current conversation as it is now; messages that stay keep their elements. */
  show() {
    const path = pathOf(this.current);
    const log = byId("log");
    const isOurs = this.runs.has(this.current.id);
    const shown = path.map((at) => this.viewOf(at));
    shown.forEach((view, i) => {
      if (log.children[i] === view.element) return;
      while (log.children[i]) log.lastChild.remove();
      log.append(view.element);
    });
    while (log.children.length > shown.length) log.lastChild.remove();
    this.views = new Map(path.map((at, i) => [at, shown[i]]));
    for (const view of shown) {
      const edit = this.drafts.editOf(this.current, view.at);
      if (view.isEditing) continue;
      if (edit) view.edit(edit);
      else view.refresh();
    }
    log.setAttribute("aria-busy", String(this.isRunning(this.current)));
    byId("empty").hidden = path.length > 0;
    byId("title").textContent = this.current.title;
    document.title = path.length ? `${this.current.title} \u00b7 jaxinfer` : "jaxinfer";
    byId("send").hidden = isOurs;
    byId("stop").hidden = !isOurs;
    this.trouble("turn", this.turns.isElsewhere(this.current.id) && { text: ELSEWHERE });
    this.showSend();
    this.showChosen();
    this.showMeter();
    this.sidebar.show();
  }

  /** The view that a message has already, or a new one. An import may have put another message in its place. */
  viewOf(at) {
    const view = this.views.get(at);
    const isSame = view?.isUser === (this.current.nodes[at].role === "user");
    return isSame ? view : new MessageView(this.current, at, this);
  }

  showModel() {
    const [model] = this.server.models;
    const host = new URL(this.server.address).host;
    byId("model").textContent = model?.id ?? "";
    byId("empty-model").textContent = model?.id ?? "jaxinfer";
    byId("model").title = model ? `${model.root}, at ${host}` : "";
    const facts = model && `${number.format(model.max_model_len)} tokens of context \u00b7 at ${host}`;
    byId("empty-facts").textContent = facts ?? "";
    byId("empty-note").textContent = model?.note ?? "";
    byId("examples").hidden = !model;
    const kept = prefs.getItem("api-key") ? "an API key is remembered in this browser" : this.server.key ? "with an API key" : "";
    byId("server-facts").textContent = [facts ?? `No connection to ${host}`, kept].filter(Boolean).join(" \u00b7 ");
  }

  showSend() {
    const { id } = this.current;
    const mayNot = this.isStarting || this.asking.has(id) || this.turns.mayBeElsewhere(id);
    byId("send").disabled = mayNot || !(byId("input").value.trim() || this.attachments.files.length);
  }

  showChosen() {
    const fault = faultIn(this.current.settings);
    const text = fault || describe(this.current.settings);
    if (this.faultNotice && this.faultNotice !== `${fault}.`) hushOf(this.faultNotice);
    byId("chosen").hidden = !text;
    byId("chosen").classList.toggle("fault", fault !== "");
    byId("chosen").textContent = text;
  }

  /** The measures of the answer under way or of the last one, and how much of the context the conversation takes. */
  showMeter() {
    this.meteredMs = performance.now();
    const stats = pathOf(this.current).map((at) => this.current.nodes[at].stats);
    const { tokensPerS, firstMs } = stats.at(-1) ?? {};
    const { promptTokens, tokens } = stats.findLast((each) => each?.promptTokens) ?? {}; // an answer that failed has none
    const context = this.server.models[0]?.max_model_len;
    const parts = [
      [tokensPerS, () => rate(tokensPerS), "The answer's tokens per second", "rate"],
      [firstMs, () => `first token ${seconds(firstMs)}`, "From the request to the answer's first token", "first"],
      [context && promptTokens, () => `${number.format(promptTokens + (tokens ?? 0))} of ${number.format(context)} tokens`, "This conversation's tokens, and the model's context", "context"],
    ];
    const spans = parts.filter(([value]) => value !== undefined && value !== null).map(([, text, title, name]) => {
      const span = element("span", text());
      span.title = title;
      span.dataset.name = name;
      return span;
    });
    byId("meter").replaceChildren(...spans);
  }

  keepAtEnd() {
    if (this.follows) this.toEnd();
    byId("to-end").hidden = this.follows;
  }

  toEnd() {
    const scroller = byId("scroller");
    scroller.scrollTop = scroller.scrollHeight;
  }

  focusInput() {
    if (matchMedia("(hover: hover)").matches) byId("input").focus(); // a phone would open its keyboard
  }

  // Keys and buttons

  listen() {
    const input = byId("input");
    const submit = async () => {
      const { current } = this;
      if (this.isRunning(current) || byId("send").disabled || !this.canAsk(current)) return;
      const sent = this.drafts.begin(current);
      let isSent = false;
      try {
        isSent = await this.send(sent.text, sent.files);
      } finally {
        this.drafts.end(current, this.current, sent, isSent);
      }
    };
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    input.addEventListener("input", () => {
      fit(input);
      this.showSend();
    });
    input.addEventListener("keydown", (event) => {
      if (isSending(event)) {
        event.preventDefault();
        submit();
      } else if (event.key === "ArrowUp" && !input.value) this.editLast(event);
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("scroller").addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = byId("scroller");
      this.follows = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
      byId("to-end").hidden = this.follows;
    }, { passive: true });
    new ResizeObserver(() => this.keepAtEnd()).observe(byId("scroller"));
    byId("to-end").addEventListener("click", () => this.toEnd());
    byId("examples").append(...EXAMPLES.map((text) => textButton(text, () => this.send(text))));
    this.listenToDialogs();
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("pagehide", () => {
      for (const { conversation } of this.runs.values()) this.save(conversation);
      this.drafts.save(this.current);
    });
    document.addEventListener("visibilitychange", () => document.hidden && this.drafts.save(this.current)); // a phone may end it
  }

  listenToDialogs() {
    for (const id of ["chosen", "open-settings"]) byId(id).addEventListener("click", () => this.openSettings());
    byId("change-key").addEventListener("click", () => this.askForKey());
    byId("address-row").hidden = this.server.isOwn;
    byId("save-page").hidden = byId("save-hint").hidden = !this.server.isOwn;
    byId("save-page").addEventListener("click", () => this.savePage());
    byId("export").addEventListener("click", () => this.exportAll());
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", async ({ target }) => {
      const [file] = target.files;
      if (file) this.addFrom(file);
      target.value = "";
    });
    byId("s-address").addEventListener("change", ({ target }) => {
      if (!URL.canParse(target.value)) return notify(`The address must be a URL such as http://127.0.0.1:8000, got ${target.value || "nothing"}.`);
      this.server.setAddress(target.value);
      this.connect();
    });
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      byId("key-dialog").close(); // first: what is said of the key is not said in it
      this.server.setKey(byId("key").value.trim(), byId("keep-key").checked);
      this.connect();
    });
    for (const dialog of document.querySelectorAll("dialog")) {
      dialog.querySelector(".close").addEventListener("click", () => dialog.close());
      dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
      dialog.addEventListener("close", () => {
        if (dialog.querySelector(".notice.shown")) hush();
        this.focusInput();
      });
    }
  }

  openSettings() {
    byId("s-address").value = this.server.address;
    this.settings.open(this.current.settings);
  }

  /** The page as a file that asks this server, when it is opened from wherever it lies. */
  async savePage() {
    let page;
    try {
      page = await (await this.server.ask("/")).text();
    } catch (error) {
      notify(`This page was not saved: ${error.message}`);
      return;
    }
    const saved = page
      .replace('data-server=""', `data-server="${this.server.address}"`)
      .replace("connect-src 'self'", `connect-src ${location.origin}`);
    download("jaxinfer-chat.html", "text/html", saved);
  }

  exportAll() {
    const all = [...this.conversations.values()];
    download("jaxinfer-conversations.json", "application/json", exported(all));
    const wrong = all.filter(({ settings }) => faultIn(settings)).map(({ title }) => `\u201c${title}\u201d`);
    if (wrong.length) notify(`The file is without the wrong settings of ${wrong.join(", ")}.`);
  }

  /** Add the conversations of a file. One that is here already is replaced by one that has all its messages, else both stay. */
  async addFrom(file) {
    let found;
    try {
      found = imported(await file.text());
    } catch (error) {
      notify(`Nothing was imported: ${error.message}.`);
      return;
    }
    let copies = 0;
    const taken = found.filter((each) => {
      const have = this.conversations.get(each.id);
      const isHere = have && isWithin(each, have);
      if (!have || (!this.isRunning(have) && isWithin(have, each))) return !isHere || each.saved > (have.saved ?? have.changed);
      each.id = newId();
      const isCopy = ![...this.conversations.values()].some((other) => isWithin(each, other));
      copies += isCopy;
      return isCopy;
    });
    for (const conversation of taken) this.put(conversation);
    const same = taken.find(({ id }) => id === this.current.id);
    if (same) this.open(same);
    this.sidebar.show();
    const rest = found.length - taken.length;
    const beside = copies ? `, ${copies} of them beside what went on differently here` : "";
    notify(`Imported ${taken.length} of ${found.length}${beside}${rest ? "; this browser has the others already" : ""}.`);
  }

  editLast(event) {
    const at = pathOf(this.current).findLast((number) => this.current.nodes[number].role === "user");
    if (at === undefined || this.isRunning(this.current)) return;
    event.preventDefault();
    this.edit(at);
  }

  edit(at) {
    this.views.get(at).edit();
  }

  key(event) {
    if (document.querySelector("dialog[open]")) return;
    const pressed = event.ctrlKey || event.metaKey ? event.key.toLowerCase() : event.key;
    const actions = { k: () => this.newChat(), b: () => this.sidebar.toggle(), ",": () => this.openSettings() };
    if (event.key === "Escape" && !this.sidebar.closeIfNarrow()) this.stop();
    else if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && actions[pressed]) {
      event.preventDefault();
      actions[pressed]();
    }
  }
}

new Page().start();
