// Conversations as a file, and back. A file that is damaged changes nothing. What is taken could have been made by this
// page: questions and answers take turns from the first on, each question is answered, and the settings are right.

const FORMAT = "jaxinfer-conversations";
const VERSION = 1;
const LAST_TIME_MS = 8.64e15; // that a Date holds

/** Settings that are wrong stay here: no page would take them. An older page could make a title of spaces. */
function exported(conversations) {
  const made = conversations.map((each) => ({ ...each, title: each.title.trim() ? each.title : UNTITLED, settings: rightOf(each.settings) }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations: made });
}

/** The conversations in a file's text. Raises an error: what must hold, what was given, what to do. */
function imported(text) {
  const file = parsed(text);
  const { format, version, conversations } = isObject(file) ? file : {};
  must(format === FORMAT, "the file must be an export of this page", isText(format) ? format.slice(0, SHOWN_CHARS) : "another format");
  must(version === VERSION, `the file must be an export of version ${VERSION}`, shown(version), "import it with a jaxinfer that reads it");
  must(Array.isArray(conversations), "the file must have a list of conversations", shown(conversations));
  const made = conversations.map((value, i) => {
    try {
      return conversationFrom(value);
    } catch (error) {
      throw new Error(`conversation ${i + 1} is damaged: ${error.message}`);
    }
  });
  const ids = made.map(({ id }) => id);
  const again = ids.findIndex((id, i) => ids.indexOf(id) < i);
  must(again < 0, `conversation ${again + 1} is damaged: it must have an id of its own`, shown(ids[again]));
  return made;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    console.info(error.message);
    throw new Error("the file must be JSON, got something else or a part of it; export it again");
  }
}

function must(isSo, law, given, cure = "export it again") {
  if (!isSo) throw new Error(`${law}, got ${given}; ${cure}`);
}

const isText = (value) => typeof value === "string";
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isCount = (value) => Number.isFinite(value) && value >= 0;

/** A value of JSON in a few words. */
function shown(value) {
  if (value === undefined) return "nothing";
  if (Array.isArray(value)) return "a list";
  return isObject(value) ? "an object" : isText(value) ? JSON.stringify(value.slice(0, SHOWN_CHARS)) : String(value);
}

/** The fields of an object that `laws` names, [law, check] each; null is a field that is left out. at: its place. */
function fieldsFrom(value, laws, at) {
  must(isObject(value), `${at} must be an object`, shown(value));
  const given = Object.entries(laws).filter(([name]) => Object.hasOwn(value, name) && value[name] !== null);
  for (const [name, [law, isRight]] of given) must(isRight(value[name]), `${name} of ${at} must be ${law}`, shown(value[name]));
  return Object.fromEntries(given.map(([name]) => [name, value[name]]));
}

const A_TEXT = ["a text", isText];
const A_COUNT = ["a number of at least 0", isCount];
const A_LIST = ["a list", Array.isArray];
const AN_OBJECT = ["an object", isObject];
const A_FLAG = ["true or false", (value) => typeof value === "boolean"];
const OF_ROLES = {
  user: { files: A_LIST },
  assistant: { thinking: A_TEXT, thoughtMs: A_COUNT, end: A_TEXT, isEdited: A_FLAG, calls: A_LIST, stats: AN_OBJECT, error: AN_OBJECT },
};
const OF_STATS = Object.fromEntries(Object.entries(FACTS).map(([name, [, shownAs]]) => [name, shownAs === String ? A_TEXT : A_COUNT]));

/** Nothing but the fields that we know, each of its type, and messages that follow earlier ones. */
function conversationFrom(value) {
  must(isObject(value), "it must be an object", shown(value));
  const { id, title, isNamed, changed, saved = changed, settings, nodes } = value;
  must(isText(id) && /^[0-9a-f]{1,64}$/.test(id), "id must be a hexadecimal number", shown(id));
  must(isText(title) && title.trim(), "title must be a text with more than spaces", shown(title));
  must(isCount(changed) && changed <= LAST_TIME_MS, "changed must be a time in milliseconds", shown(changed));
  must(isCount(saved) && saved <= LAST_TIME_MS, "saved must be a time in milliseconds", shown(saved));
  must(Array.isArray(nodes) && nodes.length > 1, "nodes must be messages", Array.isArray(nodes) ? "none" : shown(nodes));
  must(nodes.every(isObject), "nodes must be messages", shown(nodes.find((node) => !isObject(node))));
  const made = [{ parent: -1, children: [] }];
  for (let i = 1; i < nodes.length; i++) {
    made.push(messageFrom(nodes[i], made, `message ${i}`));
    made[made[i].parent].children.push(i);
  }
  made.forEach((node, i) => {
    must(node.role !== "user" || node.children.length, `message ${i} must have an answer`, "none");
    const { chosen } = nodes[i];
    const isVersion = chosen === 0 || (Number.isInteger(chosen) && chosen > 0 && chosen < node.children.length);
    must(isVersion, `chosen must be a version of what follows message ${i}`, shown(chosen));
    node.chosen = chosen;
  });
  return { id, title, isNamed: isNamed === true, changed, saved, settings: settingsFrom(settings ?? {}), nodes: made };
}

/** earlier: the messages before it, of which it follows one. */
function messageFrom(node, earlier, at) {
  const { parent, role, text } = node;
  must(Number.isInteger(parent) && parent >= 0 && parent < earlier.length, `${at} must follow an earlier one`, shown(parent));
  const due = earlier[parent].role === "user" ? "assistant" : "user";
  must(role === due, `${at} must have the role ${due}`, shown(role), "change it in the file");
  must(isText(text), `${at} must have a text`, shown(text));
  const made = { parent, role, text, children: [], ...fieldsFrom(node, OF_ROLES[role], at) };
  must(role !== "user" || text.trim() || made.files?.length, `${at} must have a text or a file`, "none");
  if (made.error) made.error = { message: "", ...fieldsFrom(made.error, { message: A_TEXT, tooLong: A_TEXT }, `the error of ${at}`) };
  if (made.stats) made.stats = fieldsFrom(made.stats, OF_STATS, `the stats of ${at}`);
  if (made.files) made.files = made.files.map((file) => textsFrom(file, ["name", "text"], at));
  if (made.calls) made.calls = made.calls.map((call) => textsFrom(call, ["name", "arguments"], at));
  if (role === "assistant" && !made.error) made.end ||= "unknown";
  return made;
}

function textsFrom(value, names, at) {
  const given = isObject(value) ? names.map((name) => value[name]) : [value];
  must(isObject(value) && given.every(isText), `files and calls must be texts in ${at}, ${names.join(" and ")}`, given.map(shown).join(" and "));
  return Object.fromEntries(names.map((name) => [name, value[name]]));
}

/** The settings, each as its field could hold it. */
function settingsFrom(settings) {
  const names = ["system", ...SAMPLING.map(({ name }) => name)];
  const made = fieldsFrom(settings, Object.fromEntries(names.map((name) => [name, A_TEXT])), "the settings");
  const fault = faultIn(made);
  if (fault) throw new Error(`${fault}; change it in the file`);
  return made;
}

/** Have the browser save a text as a file. */
function download(name, type, text) {
  const anchor = element("a");
  anchor.href = URL.createObjectURL(new Blob([text], { type }));
  anchor.download = name;
  anchor.click();
  URL.revokeObjectURL(anchor.href);
}
