// Small things that every part of the page uses.

const byId = (id) => document.getElementById(id);

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/** A button that shows an icon and is called `label`. */
function iconButton(name, label, onClick) {
  const button = element("button", icon(name));
  button.type = "button";
  button.className = "icon";
  button.title = label;
  button.setAttribute("aria-label", label);
  button.addEventListener("click", onClick);
  return button;
}

function textButton(label, onClick, kind = "") {
  const button = element("button", label);
  button.type = "button";
  button.className = kind;
  button.addEventListener("click", onClick);
  return button;
}

/** Put other children into `parent`; the focus stays on the one of the same name. */
function replaceFocused(parent, ...children) {
  const name = (node) => node.getAttribute("aria-label") || node.textContent;
  const focused = parent.contains(document.activeElement) ? name(document.activeElement) : null;
  parent.replaceChildren(...children);
  if (focused !== null) [...parent.querySelectorAll("button")].find((button) => name(button) === focused)?.focus();
}

const NOTICE_MS = 8000;
let noticeTimer = 0;

/** The dialog that is open, the topmost one, or undefined. All else is then inert: nobody can see, read or click it. */
function openDialog() {
  return [...document.querySelectorAll("dialog[open]")].at(-1);
}

/** Say something in passing, perhaps with something to do about it. */
function notify(text, action, onClick) {
  hush();
  const notice = (openDialog() ?? document.querySelector("main")).querySelector(".notice");
  const [said, button] = notice.children;
  said.textContent = text;
  button.hidden = !action;
  button.textContent = action ?? "";
  button.onclick = () => {
    hush();
    onClick();
  };
  notice.classList.add("shown");
  noticeTimer = setTimeout(hush, NOTICE_MS);
}

/** End the notice that is shown, if one is. */
function hush() {
  clearTimeout(noticeTimer);
  const notice = document.querySelector(".notice.shown");
  if (!notice) return;
  notice.classList.remove("shown");
  notice.firstChild.textContent = ""; // a screen reader passes it by, and hears the same text again
  notice.lastChild.hidden = true;
}

/** The user has gone on to something else: end a notice, unless it has something to do. */
function hushIfRead() {
  if (document.querySelector(".notice.shown > button[hidden]")) hush();
}

/** What this notice says is no longer so: end it. */
function hushOf(text) {
  if (document.querySelector(".notice.shown > span")?.textContent === text) hush();
}

/** Mark where the texts below `node` have `sought`. Returns the element of the first place, or undefined. */
function markPlaces(node, sought) {
  const places = [];
  const texts = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.data.toLowerCase();
    for (let at = text.indexOf(sought); at >= 0; at = text.indexOf(sought, at + sought.length)) {
      if (at + sought.length > texts.currentNode.data.length) break; // a letter that is two in lower case
      const [startContainer, endContainer] = [texts.currentNode, texts.currentNode];
      places.push(new StaticRange({ startContainer, startOffset: at, endContainer, endOffset: at + sought.length }));
    }
  }
  CSS.highlights?.set("found", new Highlight(...places));
  return places[0]?.startContainer.parentElement;
}

/** Put a text on the clipboard, and say so on the button. Pages of plain HTTP have the old way alone. */
async function copyText(text, button) {
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else copyTheOldWay(text);
  } catch (error) {
    notify(`The browser did not copy it: ${error.message}`);
    return;
  }
  const before = [...button.childNodes];
  if (button.classList.contains("copied")) return;
  button.classList.add("copied");
  button.replaceChildren(...(button.classList.contains("icon") ? [icon("done")] : ["Copied"]));
  setTimeout(() => {
    button.classList.remove("copied");
    button.replaceChildren(...before);
  }, 1500);
}

function copyTheOldWay(text) {
  const area = element("textarea");
  area.value = text;
  area.className = "offscreen";
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  if (!isCopied) throw new Error("copying is not allowed");
}

const number = new Intl.NumberFormat("en");

function seconds(ms) {
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  return ms < 995 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 9950 ? 2 : 1)} s`;
}

/** "1 token", "2 tokens". */
function counted(count, noun) {
  return `${number.format(count)} ${noun}${count === 1 ? "" : "s"}`;
}

function numTokens(count) {
  return counted(count, "token");
}

function rate(tokensPerS) {
  return `${tokensPerS < 10 ? tokensPerS.toFixed(1) : number.format(Math.round(tokensPerS))} tok/s`;
}

/** A text field as high as what it holds. */
function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}

/** Enter that sends, rather than ending a word of an input method or, on a phone, a line. */
function isSending(event) {
  const isTouch = matchMedia("(hover: none) and (pointer: coarse)").matches;
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && !isTouch;
}
