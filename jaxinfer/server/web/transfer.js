// Conversations as a file, and back. A file that is damaged changes nothing.

const FORMAT = "jaxinfer-conversations";
const VERSION = 1;
const ROLES = ["user", "assistant"];
const STATS = Object.keys(FACTS);

function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations });
}

/** The conversations in a file's text. Raises an error that says what is wrong with it. */
function imported(text) {
  const { format, version, conversations } = parsed(text) ?? {};
  must(format === FORMAT, `the file must be an export of this page, got ${isText(format) ? format.slice(0, 40) : "another format"}`);
  must(version === VERSION, `the file must be an export of version ${VERSION}, got ${String(version ?? "none").slice(0, 40)}; import it with a jaxinfer that reads it`);
  must(Array.isArray(conversations), "the file must have a list of conversations, got none; export it again");
  return conversations.map((value, i) => {
    try {
      return conversationFrom(value);
    } catch (error) {
      throw new Error(`conversation ${i + 1} is damaged: ${error.message}`);
    }
  });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`the file must be JSON: ${error.message}`);
  }
}

function must(isSo, law) {
  if (!isSo) throw new Error(law);
}

const isText = (value) => typeof value === "string";

/** Nothing but the fields that we know, each of its type, and messages that follow earlier ones. */
function conversationFrom(value) {
  const { id, title, isNamed, changed, settings, nodes } = value ?? {};
  must(isText(id) && /^[0-9a-f]{1,64}$/.test(id), "id must be a hexadecimal number");
  must(isText(title) && Number.isFinite(changed), "title must be a text and changed a time");
  must(Array.isArray(nodes) && nodes.length > 1, "nodes must be messages");
  const made = nodes.map((node, i) => (i === 0 ? { parent: -1 } : messageFrom(node, i)));
  for (const node of made) node.children = [];
  made.forEach((node, i) => i && made[node.parent].children.push(i));
  made.forEach((node, i) => {
    const { chosen } = nodes[i];
    must(chosen === 0 || (Number.isInteger(chosen) && chosen > 0 && chosen < node.children.length), "chosen must be a version");
    node.chosen = chosen;
  });
  return { id, title, isNamed: isNamed === true, changed, settings: settingsFrom(settings), nodes: made };
}

function messageFrom({ parent, role, text, thinking, thoughtMs, end, isEdited, files, calls, stats, error }, number) {
  must(Number.isInteger(parent) && parent >= 0 && parent < number, "a message must follow an earlier one");
  must(ROLES.includes(role) && isText(text), "a message must have a role and a text");
  const made = { parent, role, text };
  if (isText(thinking)) made.thinking = thinking;
  if (Number.isFinite(thoughtMs)) made.thoughtMs = thoughtMs;
  if (isText(end)) made.end = end;
  if (isEdited === true) made.isEdited = true;
  if (isText(error?.message)) made.error = { message: error.message, ...(isText(error.tooLong) && { tooLong: error.tooLong }) };
  if (Array.isArray(files)) made.files = files.map(({ name, text }) => textsOf({ name, text }));
  if (Array.isArray(calls)) made.calls = calls.map(({ name, arguments: passed }) => textsOf({ name, arguments: passed }));
  if (stats) made.stats = Object.fromEntries(STATS.filter((name) => ["string", "number"].includes(typeof stats[name])).map((name) => [name, stats[name]]));
  return made;
}

function textsOf(value) {
  must(Object.values(value).every(isText), "files and calls must be texts");
  return value;
}

function settingsFrom(settings) {
  const names = ["system", ...SAMPLING.map(({ name }) => name)];
  return Object.fromEntries(names.filter((name) => isText(settings?.[name])).map((name) => [name, settings[name]]));
}

/** Have the browser save a text as a file. */
function download(name, type, text) {
  const anchor = element("a");
  anchor.href = URL.createObjectURL(new Blob([text], { type }));
  anchor.download = name;
  anchor.click();
  URL.revokeObjectURL(anchor.href);
}
