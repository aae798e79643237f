// The settings of a conversation: what they are, how they are shown, and how a request says them.

// min, above, max: what the server takes; of seeds, what a JavaScript number holds exactly.
// default: where the server's own is not said in the model's card
const SAMPLING = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, range: "0 to 2" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.05, range: "0 to 1, 1 is off" },
  { name: "top_k", label: "Top k", min: -1, max: 2 ** 31 - 1, step: 1, range: "0 is off" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.05, range: "0 to 1" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, range: "from 1", default: "what fits" },
  { name: "thinking", label: "Thinking", kind: "choice" },
  { name: "seed", label: "Seed", min: Number.MIN_SAFE_INTEGER, max: Number.MAX_SAFE_INTEGER, step: 1, range: "an integer below 2\u2075\u00b3", default: "random", isRare: true },
  { name: "repetition_penalty", label: "Repetition penalty", above: 0, max: 1e6, step: 0.05, range: "1 is off", isRare: true },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, range: "\u22122 to 2", default: 0, isRare: true },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, range: "\u22122 to 2", default: 0, isRare: true },
  { name: "stop", label: "Stop at", kind: "text", isRare: true },
];
const THINKING = [
  ["", "Default"],
  ["on", "On"],
  ["off", "Off"],
];

/** The fields of a request that the settings ask for; what is empty is left out. */
function fieldsOf(settings) {
  const fields = {};
  for (const { name, kind } of SAMPLING) if (!kind && settings[name]) fields[name] = Number(settings[name]);
  if (settings.stop) fields.stop = [settings.stop];
  if (settings.thinking) fields.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  return fields;
}

/** The settings that are not the model's own, in a few words. */
function describe(settings) {
  const chosen = SAMPLING.filter(({ name }) => settings[name]).map(({ name, label }) => `${label.toLowerCase()} ${settings[name]}`);
  return (settings.system?.trim() ? ["system prompt", ...chosen] : chosen).join(", ");
}

function control({ kind, min, above, max, step }) {
  if (kind === "choice") return element("select", ...THINKING.map(([value, label]) => new Option(label, value)));
  const input = element("input");
  input.type = kind ?? "number";
  if (!kind) Object.assign(input, { min: min ?? above ?? "", max: max ?? "", step });
  input.placeholder = kind ? "nothing" : "default";
  input.autocomplete = "off";
  return input;
}

/** What a number must be: "a number from 0 to 2". */
function lawOf({ min, above, max, step }) {
  const isOpen = above !== undefined;
  const low = isOpen ? `above ${above}` : max === undefined ? `of at least ${min}` : `from ${min}`;
  const high = max === undefined ? "" : isOpen ? ` and at most ${max}` : ` to ${max}`;
  return `${step === 1 ? "an integer" : "a number"} ${low}${high}`;
}

/** What is wrong with a setting, "must be ..., got ...", or "". An empty one is right: the model's default. */
function faultOf(field, value) {
  if (!field || field.kind || !value) return "";
  const { min = -Infinity, above = -Infinity, max = Infinity, step } = field;
  const given = Number(value);
  const isRight = given >= min && given > above && given <= max && (step !== 1 || Number.isInteger(given));
  const law = step === 1 && Number.isFinite(given) && !Number.isInteger(given) ? "an integer" : lawOf(field);
  return isRight ? "" : `must be ${law}, got ${value}`;
}

/** What is wrong with a conversation's settings, in a sentence, or "". */
function faultIn(settings) {
  const faults = SAMPLING.map((field) => [field.label, faultOf(field, settings[field.name])]).filter(([, fault]) => fault);
  return faults.map(([label, fault]) => `${label} ${fault}`).join("; ");
}

/** The dialog. change: called with the name and the new value of what was changed. */
class SettingsDialog {
  constructor(change) {
    this.dialog = byId("settings");
    this.controls = new Map([["system", byId("s-system")]]);
    for (const field of SAMPLING) {
      const made = control(field);
      made.id = `s-${field.name}`;
      this.controls.set(field.name, made);
      const range = element("span", field.range ?? "");
      range.className = "range";
      const fault = element("p");
      fault.className = "fault";
      fault.id = `${made.id}-fault`;
      made.setAttribute("aria-describedby", fault.id);
      const place = element("div", element("label", field.label, range, made), fault);
      byId(field.isRare ? "sampling-more" : "sampling").append(place);
    }
    for (const [name, made] of this.controls) {
      made.addEventListener("input", () => {
        this.mark(name);
        if (!made.validity.badInput) change(name, made.value);
      });
    }
    byId("reset-settings").addEventListener("click", () => {
      for (const name of this.controls.keys()) change(name, "");
      this.fill({});
    });
  }

  /** Say in each empty field what an empty one means. model: its card. */
  showDefaults(model) {
    for (const { name, kind, default: stated } of SAMPLING) {
      const value = model?.default_sampling_params?.[name] ?? stated;
      if (!kind) this.controls.get(name).placeholder = typeof value === "number" ? `default ${value}` : (value ?? "default");
    }
  }

  mark(name) {
    const made = this.controls.get(name);
    const field = SAMPLING.find((field) => field.name === name);
    const fault = made.validity.badInput ? `must be ${lawOf(field)}` : faultOf(field, made.value);
    made.setAttribute("aria-invalid", String(fault !== ""));
    if (field) byId(`s-${name}-fault`).textContent = fault;
  }

  fill(settings) {
    for (const [name, made] of this.controls) {
      made.value = settings[name] ?? "";
      this.mark(name);
    }
  }

  open(settings) {
    this.fill(settings);
    this.dialog.showModal();
    const wrong = this.dialog.querySelector("[aria-invalid=true]");
    if (!wrong) return;
    for (const details of this.dialog.querySelectorAll("details:has([aria-invalid=true])")) details.open = true;
    wrong.focus();
  }
}
