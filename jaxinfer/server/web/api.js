// Asking the server.

/** What the server refused, in its own words where there are none for people. key: that the request brought. */
class Refusal extends Error {
  constructor(status, { message, code, param }, retryAfterS, key) {
    super(FOR_PEOPLE[code]?.(message, key) ?? message);
    this.status = status;
    this.code = code;
    this.param = param;
    this.retryAfterS = retryAfterS;
  }
}

/** There was no answer at all, or it may not be read. */
class Unreachable extends Error {}

const OF_SESSION = ["session_busy", "too_many_sessions", "session_not_found"];
// What the server says to programs, in words for people
const TOO_LONG = "context_length_exceeded";
const FOR_PEOPLE = {
  invalid_api_key: (message, key) => (key ? "This server does not take the API key that you entered. Enter another." : "This server asks for an API key. Enter one to go on."),
  starting: () => "The model is still loading. Try again when it is ready.",
  [TOO_LONG]: (message) => `This conversation is too long for the model. All of its messages and files count, and the answer. ${message.replace(` (${TOO_LONG})`, "")}.`,
};
const THERE_MS = 3000;
const CUT = "The connection ended before the answer did.";

class Server {
  constructor() {
    const page = document.documentElement.dataset.server; // written there when the page is saved
    this.isOwn = location.protocol.startsWith("http");
    this.pref = `server ${page}`; // pages from files share what the browser keeps
    this.address = this.isOwn ? new URL(".", location.href).href : prefs.getItem(this.pref) || page || "http://127.0.0.1:8000";
    this.address = this.address.replace(/\/$/, "");
    this.key = session.getItem("api-key") || prefs.getItem("api-key") || "";
    this.models = [];
  }

  /** A key is kept for this tab, and for good only when that was asked for. It goes into a header and nowhere else. */
  setKey(key, isKept) {
    this.key = key;
    remember(session, "api-key", isKept ? "" : key);
    remember(prefs, "api-key", isKept ? key : "");
  }

  setAddress(address) {
    this.address = address.replace(/\/+$/, "");
    remember(prefs, this.pref, this.address);
  }

  /** The answer to a request, if it is a good one. Raises Refusal, Unreachable, or AbortError. */
  async ask(path, body, signal, method = body ? "POST" : "GET") {
    const { key } = this;
    const headers = { ...(body && { "content-type": "application/json" }), ...(key && { authorization: `Bearer ${key}` }) };
    const options = { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" };
    let response;
    try {
      response = await fetch(this.address + path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (this.isOwn || !(await this.isThere())) throw new Unreachable(`No answer from ${this.address}. Is the server running?`);
      const law = "it does not answer saved pages";
      throw new Unreachable(`The server at ${this.address} is running, but ${law}. Start it with --allowed-origins null, then try again.`);
    }
    if (response.ok) return response;
    const text = await response.text();
    throw new Refusal(response.status, errorIn(text, response.status), Number(response.headers.get("retry-after")) || 0, key);
  }

  /** Whether somebody answers at all, if only what this page may not read. */
  async isThere() {
    try {
      await fetch(`${this.address}/live`, { mode: "no-cors", cache: "no-store", signal: AbortSignal.timeout(THERE_MS) });
      return true;
    } catch (error) {
      console.info(error.message);
      return false;
    }
  }

  async json(path) {
    return (await this.ask(path)).json();
  }

  /**
   * The same of a turn of a session, whose pages stay cached for the next; without it where the server does not take it as
   * one, and `onAlone` is told why. The server is not to keep the conversation's text: each request brings all of it.
   */
  async *streamTurn(id, body, signal, onAlone) {
    try {
      yield* this.stream({ ...body, session_id: id, session_history: false }, signal);
      return;
    } catch (error) {
      if (!OF_SESSION.includes(error.code) && !error.param?.startsWith("session_")) throw error;
      onAlone(error.message);
    }
    yield* this.stream(body, signal);
  }

  /** Free the pages of a session, if there is one. */
  async endSession(id) {
    await this.ask(`/v1/sessions/${id}`, null, null, "DELETE").catch((error) => console.info(error.message));
  }

  /** The chunks of a streamed answer. */
  async *stream(body, signal) {
    const response = await this.ask("/v1/chat/completions", body, signal);
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refusal(200, chunk.error, 0);
      yield chunk;
    }
    throw new Unreachable(CUT);
  }
}

/** A proxy's answer may have another shape. */
function errorIn(text, status) {
  try {
    const { error } = JSON.parse(text);
    if (typeof error?.message === "string") return error;
  } catch (error) {
    console.info(`the answer is not JSON: ${error.message}`);
  }
  return { message: `HTTP ${status}: ${text.slice(0, 500)}`, code: null };
}

/** The data of server-sent events. Source: the HTML standard, 9.2.6; our server writes a line of data an event. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Unreachable(CUT);
    });
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6).trimEnd();
  }
}
