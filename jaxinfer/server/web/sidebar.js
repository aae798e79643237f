// The list of conversations, and the theme.

const DAY_MS = 86_400_000;

/** `page` is told what is asked for: open, rename, remove, newChat. */
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
    byId("search").addEventListener("input", () => this.show());
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
    const sorted = [...this.page.conversations.values()].filter((each) => holds(each, sought)).sort((a, b) => b.changed - a.changed);
    const today = new Date().setHours(0, 0, 0, 0);
    const groups = new Map();
    for (const conversation of sorted) {
      const days = Math.ceil((today - conversation.changed) / DAY_MS);
      const name = days <= 0 ? "Today" : days === 1 ? "Yesterday" : days <= 7 ? "This week" : days <= 31 ? "This month" : "Earlier";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(this.item(conversation));
    }
    const parts = [...groups].flatMap(([name, items]) => [element("h2", name), element("ul", ...items)]);
    if (sought && parts.length === 0) parts.push(element("p", "No conversation matches."));
    replaceFocused(byId("conversations"), ...parts);
  }

  item(conversation) {
    const show = () => {
      this.closeIfNarrow();
      this.page.open(conversation);
    };
    const open = textButton(conversation.title, show, "open");
    open.title = conversation.title;
    const rename = iconButton("edit", `Rename ${conversation.title}`, () => this.rename(item, conversation));
    const remove = iconButton("bin", `Delete ${conversation.title}`, () => this.page.remove(conversation));
    open.addEventListener("keydown", (event) => {
      if (event.key === "F2") this.rename(item, conversation);
      else if (event.key === "Delete") this.page.remove(conversation);
    });
    const item = element("li", open, rename, remove);
    if (conversation === this.page.current) open.setAttribute("aria-current", "true");
    if (this.page.isRunning(conversation)) item.className = "running";
    return item;
  }

  rename(item, conversation) {
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

/** Whether a conversation's title or one of its messages has this in it. */
function holds({ title, nodes }, sought) {
  return !sought || [title, ...nodes.map(({ text }) => text ?? "")].some((text) => text.toLowerCase().includes(sought));
}
