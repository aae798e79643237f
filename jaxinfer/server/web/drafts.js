// What is typed and attached and not sent: each conversation has its own. A tab's drafts outlive a reload.

const DRAFTS = "drafts";

const isSome = ({ text, files }) => text.trim() !== "" || files.length > 0;

class Drafts {
  constructor(attachments) {
    this.attachments = attachments;
    this.kept = new Map(); // by the conversation's id: text and files
    this.edits = new Map(); // by the conversation's id: the messages that are being edited, by their numbers
    this.blank = null; // the conversation without messages that was left with a draft or settings of its own
    this.isRestored = false; // until then, what the last page wrote down stands
    this.sending = 0; // drafts that are neither sent nor given back yet
  }

  /** Put away the draft of the conversation that is left, and bring that of the other. */
  change(left, conversation) {
    if (conversation.id === left.id) return;
    this.keep(left, this.shown);
    this.show(this.draftOf(conversation));
  }

  /** What is typed and attached now. */
  get shown() {
    return { text: byId("input").value, files: this.attachments.files };
  }

  show({ text, files }) {
    byId("input").value = text;
    fit(byId("input"));
    this.attachments.replace(files);
  }

  draftOf({ id }) {
    return this.kept.get(id) ?? { text: "", files: [] };
  }

  /** An empty draft is kept too: one of its files may still be being read. */
  keep(conversation, draft) {
    this.kept.set(conversation.id, draft);
    if (conversation.nodes.length === 1 && (conversation.isSet || isSome(draft))) this.blank = conversation;
    else if (conversation.id === this.blank?.id) this.blank = null;
  }

  /** What is typed leaves its box to be sent, and what is typed from now on is the next draft. */
  begin(conversation) {
    this.save(conversation);
    this.sending += 1;
    const sent = { text: this.shown.text, files: this.attachments.files.splice(0) };
    this.show({ text: "", files: this.attachments.files });
    return sent;
  }

  /** What has begun was sent, or else it is a draft again. current: the conversation that is shown now. */
  end(conversation, current, sent, isSent) {
    this.sending -= 1;
    if (!isSent) this.giveBack(conversation, current, sent);
    this.save(current);
  }

  /** Put a draft before what has been typed since. */
  giveBack(conversation, current, earlier) {
    const later = conversation === current ? this.shown : this.draftOf(conversation);
    later.files.unshift(...earlier.files);
    const draft = { text: [earlier.text, later.text].filter(Boolean).join("\n"), files: later.files };
    this.keep(conversation, draft);
    if (conversation === current) this.show(draft);
  }

  /** A message's edit, as far as it is typed, or undefined. */
  editOf({ id }, at) {
    return this.edits.get(id)?.get(at);
  }

  keepEdit({ id }, at, edit) {
    if (!this.edits.has(id)) this.edits.set(id, new Map());
    this.edits.get(id).set(at, edit);
  }

  endEdit({ id }, at, current) {
    this.edits.get(id)?.delete(at);
    this.save(current);
  }

  /** Write all drafts down for this tab's next page; without their files where the browser has no room for them. */
  save(current) {
    if (!this.isRestored || this.sending) return;
    this.keep(current, this.shown);
    const blank = current.nodes.length === 1 && describe(current.settings) ? current : this.blank;
    const said = "did not save the files of what you have typed";
    if (!remember(session, DRAFTS, this.written(blank), said))
      remember(session, DRAFTS, this.written(blank, (name, value) => (name === "files" ? [] : value)), "did not save what you have typed");
  }

  /** All drafts as a text, "" for none. blank: the conversation without messages to go on with.    replacer: JSON's. */
  written(blank, replacer) {
    const kept = [...this.kept].filter(([, draft]) => isSome(draft));
    const edits = [...this.edits].filter(([, each]) => each.size).map(([id, each]) => [id, [...each]]);
    return kept.length || edits.length || blank ? JSON.stringify({ kept, edits, blank }, replacer) : "";
  }

  /** Take the drafts that this tab's last page has written down. conversations: those there are, by their ids. */
  restore(conversations) {
    const { kept = [], edits = [], blank = null } = JSON.parse(session.getItem(DRAFTS) ?? "{}");
    const isThere = ([id]) => conversations.has(id) || id === blank?.id;
    this.kept = new Map(kept.filter(isThere));
    this.edits = new Map(edits.filter(isThere).map(([id, each]) => [id, new Map(each)]));
    if (blank && !conversations.has(blank.id)) this.blank = blank;
    this.isRestored = true;
  }
}
