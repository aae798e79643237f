// What this browser keeps: conversations in IndexedDB, a few choices in localStorage. Where it keeps nothing, as private
// windows of some browsers do, the page works all the same and says so.

/** localStorage or sessionStorage, or a stand-in for this page's life where the browser refuses. */
function storage(name) {
  try {
    window[name].getItem("jaxinfer");
    return window[name];
  } catch (error) {
    console.info(`${name} is not available: ${error.message}`);
    const kept = new Map();
    return {
      getItem: (key) => kept.get(key) ?? null,
      setItem: (key, value) => void kept.set(key, value),
      removeItem: (key) => void kept.delete(key),
    };
  }
}

const prefs = storage("localStorage");
const session = storage("sessionStorage");

/** Returns whether a value is kept, "" for none. Where it is not, an older one does not stay in its place. */
function remember(where, key, value, said = "did not save this choice") {
  try {
    where.removeItem(key);
    if (value !== "") where.setItem(key, value);
    return true;
  } catch (error) {
    notify(`The browser ${said}: ${error.message}`);
    return false;
  }
}

function asked(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Conversations by id. `trouble` is called with a sentence when something is not kept, with "" when all is again. */
class Store {
  constructor(trouble) {
    this.trouble = trouble;
    this.database = null;
    this.others = new BroadcastChannel("jaxinfer"); // the same page in other tabs
  }

  /** Every conversation there is. onChange: called with the id of one that another tab has changed. */
  async open(onChange) {
    this.others.onmessage = ({ data }) => onChange(data);
    try {
      const request = indexedDB.open("jaxinfer", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
      this.database = await asked(request);
      return await asked(this.table("readonly").getAll());
    } catch (error) {
      this.database = null;
      this.trouble(`This browser saves no conversations here (${error.message}). They are lost when you close the page.`);
      return [];
    }
  }

  table(mode) {
    return this.database.transaction("conversations", mode).objectStore("conversations");
  }

  async get(id) {
    return this.database && asked(this.table("readonly").get(id));
  }

  async put(conversation) {
    await this.write(conversation.id, (table) => table.put(conversation));
  }

  async remove(id) {
    await this.write(id, (table) => table.delete(id));
  }

  async write(id, change) {
    if (this.database === null) return;
    try {
      const table = this.table("readwrite");
      const done = asked(change(table));
      table.transaction.commit(); // the page may be closed at once
      await done;
      this.others.postMessage(id);
      this.trouble("");
    } catch (error) {
      const isFull = error.name === "QuotaExceededError";
      const why = isFull ? "This browser has no room left; delete some conversations" : `The browser says: ${error.message}`;
      this.trouble(`The last change was not saved. ${why}.`);
    }
  }
}
