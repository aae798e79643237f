// A conversation is a tree: a message's children are the versions of what comes after it, and `chosen` says which is shown.
// nodes[0] is the root and holds no message. Plain values alone, as IndexedDB keeps them.

const TITLE_CHARS = 60;
const UNTITLED = "Untitled";

function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** changed: when it got a message or an answer ended.    saved: when anything of it was changed. */
function newConversation(settings) {
  const root = { parent: -1, children: [], chosen: 0 };
  return { id: newId(), title: "New chat", isNamed: false, changed: Date.now(), settings: { ...settings }, nodes: [root] };
}

/** Append a message after `parent` as its newest version; returns its number. */
function addMessage(conversation, parent, message) {
  const number = conversation.nodes.length;
  conversation.nodes.push({ ...message, parent, children: [], chosen: 0 });
  const above = conversation.nodes[parent];
  above.chosen = above.children.push(number) - 1;
  conversation.changed = Date.now();
  if (!conversation.isNamed && parent === 0) conversation.title = titleOf(message.text || message.files[0].name);
  return number;
}

function titleOf(text) {
  const line = text.trim().split("\n", 1)[0] || UNTITLED; // a file's name may be a space
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS - 1).trimEnd()}…` : line;
}

/** Whether a message is an answer that is under way, or one whose page was closed. */
function isUnfinished({ role, end, error }) {
  return role === "assistant" && !end && !error;
}

/** The numbers of the messages that are shown, first to last. */
function pathOf(conversation) {
  const path = [];
  for (let node = conversation.nodes[0]; node.children.length; node = conversation.nodes[path.at(-1)])
    path.push(node.children[node.chosen]);
  return path;
}

/** What leads to a message, itself included. */
function pathTo(conversation, number) {
  const path = [];
  for (; number > 0; number = conversation.nodes[number].parent) path.unshift(number);
  return path;
}

/** Whether a conversation has each message of another in the same place, or what that begins. */
function isWithin({ nodes }, other) {
  const said = ({ parent, files, text }) => JSON.stringify([parent, files, text ?? ""]).slice(0, -2);
  return nodes.every((node, i) => i in other.nodes && said(other.nodes[i]).startsWith(said(node)));
}

/** Which version a message is, from 0, and of how many. */
function versionOf(conversation, number) {
  const { children } = conversation.nodes[conversation.nodes[number].parent];
  return { index: children.indexOf(number), count: children.length };
}

/** Show the version before (-1) or after (1) this one. */
function chooseVersion(conversation, number, step) {
  const { index, count } = versionOf(conversation, number);
  conversation.nodes[conversation.nodes[number].parent].chosen = Math.min(count - 1, Math.max(0, index + step));
}

/** Show the versions that lead to a message. */
function choosePath(conversation, number) {
  for (const at of pathTo(conversation, number)) {
    const above = conversation.nodes[conversation.nodes[at].parent];
    above.chosen = above.children.indexOf(at);
  }
}

/** What the server is sent for an answer to message `number`. */
function messagesFor(conversation, number) {
  const { system } = conversation.settings;
  const said = pathTo(conversation, number).map((at) => {
    const { role, text, thinking, files = [] } = conversation.nodes[at];
    return { role, content: [text, ...files.map(quoted)].filter(Boolean).join("\n\n"), ...(thinking && { reasoning_content: thinking }) };
  });
  return system?.trim() ? [{ role: "system", content: system }, ...said] : said;
}

/** Thinking and answer of what a model has said: in tags, of which the template may have said the first. */
function splitThinking({ text, thinking }) {
  if (thinking) return { thinking, answer: text, isThinking: text === "" };
  const begun = /^\s*<think>\s*/.exec(text)?.[0].length ?? 0;
  const end = text.indexOf("</think>");
  if (end >= 0) return { thinking: text.slice(begun, end).trim(), answer: text.slice(end + 8).trimStart(), isThinking: false };
  return begun ? { thinking: text.slice(begun), answer: "", isThinking: true } : { thinking: "", answer: text, isThinking: false };
}
