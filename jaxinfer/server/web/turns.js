// Which tab answers a conversation. A tab writes all of a conversation, so two that answer would undo each other.
//
// The tab that answers has a database open that is named by the conversation. Nobody can delete a database that is open,
// and the browser closes it when its tab ends, however it ends. Web locks mean the same, but plain HTTP has none of them.

const SLOW_MS = 500; // a tab that works or sleeps does not say at once that it has a database open

const turnName = (id) => `jaxinfer turn ${id}`;

/** onChange: called with the id of a conversation when another tab is found to answer it, and when it no longer does. */
class Turns {
  constructor(onChange) {
    this.onChange = onChange;
    this.own = new Map(); // id: the open database
    this.looked = new Map(); // id: whether another tab is known to answer it; as long as it may
  }

  /** Whether another tab may be answering: it is, or nobody has said yet. */
  mayBeElsewhere(id) {
    return this.looked.has(id);
  }

  isElsewhere(id) {
    return this.looked.get(id) === true;
  }

  /** Look whether another tab answers. Returns whether none does. If one does, onChange tells its end. */
  look(id) {
    if (this.own.has(id)) return Promise.resolve(true);
    if (this.looked.has(id)) return Promise.resolve(false);
    this.looked.set(id, false);
    return new Promise((resolve, reject) => {
      const deletion = indexedDB.deleteDatabase(turnName(id));
      const isTaken = () => {
        this.looked.set(id, true);
        resolve(false);
        this.onChange(id);
      };
      const timer = setTimeout(isTaken, SLOW_MS);
      const end = (settle) => {
        clearTimeout(timer);
        const wasTaken = this.looked.get(id);
        this.looked.delete(id);
        settle();
        if (wasTaken) this.onChange(id);
      };
      deletion.onblocked = () => {
        clearTimeout(timer);
        isTaken();
      };
      deletion.onsuccess = () => end(() => resolve(true));
      deletion.onerror = () => end(() => reject(deletion.error));
    });
  }

  /** Take the turn. Returns whether this tab has it now. */
  async take(id) {
    if (!(await this.look(id))) return false;
    const opening = indexedDB.open(turnName(id));
    let isOurs = false; // of two tabs at the same moment, that has the turn whose request makes the database
    opening.onupgradeneeded = () => (isOurs = true);
    const database = await asked(opening);
    if (isOurs) this.own.set(id, database);
    else database.close();
    return isOurs;
  }

  give(id) {
    this.own.get(id)?.close();
    if (this.own.delete(id)) indexedDB.deleteDatabase(turnName(id)); // if it fails, it is deleted with the next turn
  }
}
