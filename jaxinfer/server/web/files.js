// Texts that go with a message: read here, kept with the conversation, and sent as part of what is said.

const MAX_FILES = 10; // with one message
const MAX_FILE_BYTES = 200_000;

/** Whether a file is a PDF by its type, its name or its first bytes. A PDF of letters alone would pass as text. */
async function isPdf(file) {
  return file.type === "application/pdf" || /\.pdf$/i.test(file.name) || (await file.slice(0, 5).text()) === "%PDF-";
}

/** Whether a file is a picture, a sound or a film by its type or its name; a picture in SVG is text. */
function isMedia({ type, name }) {
  const isNamedSo = /\.(png|jpe?g|gif|webp|bmp|ico|tiff?|hei[cf]|avif|mp[34]|wav|ogg|flac|m4a|mov|webm|mkv|avi)$/i.test(name);
  return isNamedSo || (/^(image|audio|video)\//.test(type) && !/svg|mp2t/.test(type)); // a browser takes TypeScript's .ts for a film
}

/** The text of a file. Raises an error that says why it cannot be attached. */
async function textOf(file) {
  const { name, size } = file;
  if (size === 0) throw new Error(`${name} must hold text, got an empty file; attach one with text`);
  if (isMedia(file)) throw new Error(`${name} must be text, images, audio and video are not supported; attach a text about it`);
  if (await isPdf(file))
    throw new Error(`${name} is a PDF, which this page cannot read; run pdftotext "${name}" and attach the .txt file, or paste the text from a PDF viewer`);
  const limit = `${number.format(MAX_FILE_BYTES / 1000)} kB`;
  if (size > MAX_FILE_BYTES) throw new Error(`${name} must have at most ${limit}, got ${number.format(Math.ceil(size / 1000))} kB`);
  const bytes = await file.arrayBuffer();
  let text = "\0";
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch (error) {
    console.info(error.message);
  }
  if (text.includes("\0")) throw new Error(`${name} must be text in UTF-8; convert it, then attach that`);
  return text;
}

/** A file as a model reads it: its name, and its text in a fence that is longer than any in it. */
function quoted({ name, text }) {
  const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** The names of files. onRemove: called with the number of one that is not to be sent. */
function chips(files, onRemove) {
  const made = files.map(({ name, text }, i) => {
    const chip = element("li", element("span", name), element("small", ` ${counted(text.length, "character")}`));
    if (onRemove) chip.append(iconButton("close", `Remove ${name}`, () => onRemove(i)));
    return chip;
  });
  const list = element("ul", ...made);
  list.className = "chips";
  return list;
}

/** Show in `place` the names of files that can be removed. onRemove: called when one has been. */
function showRemovable(place, files, onRemove) {
  const list = chips(files, (i) => {
    files.splice(i, 1);
    showRemovable(place, files, onRemove);
    onRemove();
  });
  place.replaceChildren(...(files.length ? [list] : []));
}

/** What goes with the next message. */
class Attachments {
  constructor(onChange) {
    this.files = [];
    this.onChange = onChange;
    byId("attach").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", ({ target }) => {
      this.add([...target.files]);
      target.value = "";
    });
    const main = document.querySelector("main");
    main.addEventListener("dragover", (event) => event.preventDefault());
    main.addEventListener("drop", (event) => this.take(event, event.dataTransfer));
    byId("input").addEventListener("paste", (event) => this.take(event, event.clipboardData));
  }

  take(event, { files }) {
    if (files.length === 0) return;
    event.preventDefault();
    this.add([...files]);
  }

  async add(files) {
    const faults = new Set();
    const attached = this.files; // of this draft, whichever is shown when a file has been read
    hush();
    for (const file of files) {
      try {
        const { name } = file;
        const text = await textOf(file);
        if (attached.some((other) => other.name === name && other.text === text)) throw new Error(`${name} is attached already`);
        if (attached.length >= MAX_FILES) throw new Error(`a message may have at most ${MAX_FILES} files`);
        attached.push({ name, text });
      } catch (error) {
        faults.add(error.message);
      }
    }
    if (faults.size) notify(`Not attached: ${[...faults].join("; ")}.`);
    this.show();
  }

  show() {
    showRemovable(byId("attached"), this.files, () => {
      this.onChange();
      byId("input").focus();
    });
    this.onChange();
  }

  /** Show another draft's files. */
  replace(files) {
    this.files = files;
    this.show();
  }
}
