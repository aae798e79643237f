// What is typed and attached and not sent: each conversation has its own, as long as this page is open.

class Drafts {
  constructor(attachments) {
    this.attachments = attachments;
    this.kept = new Map(); // by the conversation's id
    this.blank = null; // the conversation without messages that was left with a draft
  }

  /** Put away the draft of the conversation that is left, and bring that of the other. */
  change(left, { id }) {
    if (id === left.id) return;
    const input = byId("input");
    const draft = { text: input.value, files: this.attachments.files };
    this.kept.set(left.id, draft);
    if (left.nodes.length === 1) this.blank = draft.text.trim() || draft.files.length ? left : null;
    const { text, files } = this.kept.get(id) ?? { text: "", files: [] };
    input.value = text;
    fit(input);
    this.attachments.replace(files);
  }
}
