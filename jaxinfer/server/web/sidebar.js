// The list of conversations, and the theme.

const DAY_MS = 86_400_000;
const PLACE_CHARS = 24; // shown before what was found, and twice as many behind it

/** `page` is told what is asked for: open, rename, remove, newChat. It says what `isHeldBack`. */
class Sidebar {
  constructor(page) {
    this.page = page;
    this.narrow = matchMedia("(max-width: 800px)");
    this.renaming = null;
    this.setTheme(prefs.getItem("theme") ?? "");
    this.setOpen(!this.narrow.matches && prefs.getItem("sidebar") !== "closed");
  }

  listen() {
    byId("new-chat").addEventListener("click", () => this.page.newChat());
    byId("new-chat-small").addEventListener("click", () => this.page.newChat());
    byId("search").addEventListener("input", () => {
      CSS.highlights?.clear();
      this.show();
    });
    byId("theme").addEventListener("click", () => this.toggleTheme());
    for (const id of ["hide-sidebar", "show-sidebar"]) byId(id).addEventListener("click", () => this.toggle());
    byId("backdrop").addEventListener("click", () => this.setOpen(false));
    this.narrow.addEventListener("change", () => this.setOpen(!this.narrow.matches && prefs.getItem("sidebar") !== "closed"));
    if (/Mac|iP(hone|ad)/.test(navigator.platform))
      for (const key of document.querySelectorAll("kbd")) key.textContent = key.textContent.replace(/Ctrl ?/, "\u2318");
  }

  // Open or not

  setOpen(isOpen) {
    this.isOpen = isOpen;
    document.body.classList.toggle("with-sidebar", isOpen);
    byId("sidebar").inert = !isOpen;
    document.querySelector("main").inert = isOpen && this.narrow.matches;
    byId("show-sidebar").setAttribute("aria-expanded", String(isOpen));
  }

  toggle() {
    const hadFocus = byId("sidebar").contains(document.activeElement);
    this.setOpen(!this.isOpen);
    if (!this.narrow.matches) remember(prefs, "sidebar", this.isOpen ? "" : "closed");
    if (this.isOpen) byId("hide-sidebar").focus();
    else if (hadFocus) byId("show-sidebar").focus();
  }

  /** Whether there was something to close. */
  closeIfNarrow() {
    const closes = this.isOpen && this.narrow.matches;
    if (closes) this.setOpen(false);
    return closes;
  }

  // The theme: the system's, until another is asked for

  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    remember(prefs, "theme", theme);
  }

  toggleTheme() {
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const now = document.documentElement.dataset.theme || system;
    const wanted = now === "dark" ? "light" : "dark";
    this.setTheme(wanted === system ? "" : wanted);
  }

  // The list

  show() {
    if (this.renaming) return;
    const sought = byId("search").value.trim().toLowerCase();
    const hits = new Map([...this.page.conversations.values()].map((each) => [each, hitIn(each, sought)]));
    const sorted = [...hits.keys()].filter((each) => hits.get(each)).sort((a, b) => b.changed - a.changed);
    const today = new Date().setHours(0, 0, 0, 0);
    const groups = new Map();
    for (const conversation of sorted) {
      const days = Math.ceil((today - conversation.changed) / DAY_MS);
      const name = days <= 0 ? "Today" : days === 1 ? "Yesterday" : days <= 7 ? "This week" : days <= 31 ? "This month" : "Earlier";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(this.item(conversation, hits.get(conversation).at, sought));
    }
    const parts = [...groups].flatMap(([name, items]) => [element("h2", name), element("ul", ...items)]);
    if (sought && parts.length === 0) parts.push(element("p", "No conversation matches."));
    replaceFocused(byId("conversations"), ...parts);
  }

  /** at: the message that holds `sought`, if the title does not. */
  item(conversation, at, sought) {
    const show = () => {
      this.closeIfNarrow();
      this.page.open(conversation);
      if (at !== undefined) this.page.showPlace(at, sought);
    };
    const open = textButton(conversation.title, show, "open");
    open.title = conversation.title;
    const rename = iconButton("edit", `Rename ${conversation.title}`, () => this.rename(item, conversation));
    const remove = iconButton("bin", `Delete ${conversation.title}`, () => this.page.remove(conversation));
    open.addEventListener("keydown", (event) => {
      if (event.key === "F2") this.rename(item, conversation);
      else if (event.key === "Delete") this.page.remove(conversation);
    });
    const place = at === undefined ? [] : [placeButton(conversation.nodes[at].text, sought, show)];
    const item = element("li", open, rename, remove, ...place);
    if (conversation === this.page.current) open.setAttribute("aria-current", "true");
    if (this.page.isRunning(conversation)) item.className = "running";
    return item;
  }

  rename(item, conversation) {
    if (this.page.isHeldBack(conversation)) return;
    const input = element("input");
    input.value = conversation.title;
    input.setAttribute("aria-label", "Title");
    this.renaming = input;
    const close = (isKept) => {
      if (this.renaming !== input) return; // its removal takes the focus away, which is heard here once more
      this.renaming = null;
      if (isKept) this.page.rename(conversation, input.value);
      this.show();
      byId("conversations").querySelector("[aria-current]")?.focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      close(event.key === "Enter");
    });
    input.addEventListener("blur", () => close(true));
    item.replaceChildren(input);
    input.select();
  }
}

/** Where a conversation has this in it, or null: in a message `at`, one that is shown if possible, or in its title. */
function hitIn(conversation, sought) {
  const holds = (text) => (text ?? "").toLowerCase().includes(sought);
  if (holds(conversation.title)) return {};
  const at = [...pathOf(conversation), ...conversation.nodes.keys()].find((number) => holds(conversation.nodes[number].text));
  return at === undefined ? null : { at };
}

/** The words around the first place in a text that has `sought`. */
function placeButton(text, sought, onClick) {
  const start = text.toLowerCase().indexOf(sought);
  const end = start + sought.length;
  const from = Math.max(0, start - PLACE_CHARS);
  const before = from ? `\u2026${text.slice(from, start).replace(/^\S*\s+/, "")}` : text.slice(0, start);
  const behind = text.slice(end, end + 2 * PLACE_CHARS);
  const button = textButton("", onClick, "place");
  button.append(before, element("mark", text.slice(start, end)), behind);
  return button;
}
