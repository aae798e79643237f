// The settings of a conversation: what they are, how they are shown, and how a request says them.

// min, max, maxChars: what the server takes; of integers, what a JavaScript number holds exactly.
// default: where the server's own is not said in the model's card
const SAMPLING = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, range: "0 to 2" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.05, range: "0 to 1, 1 is off" },
  { name: "top_k", label: "Top k", min: -1, max: 2 ** 31 - 1, step: 1, range: "0 is off" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.05, range: "0 to 1" },
  { name: "max_tokens", label: "Max tokens", min: 1, max: Number.MAX_SAFE_INTEGER, step: 1, range: "from 1", default: "what fits" },
  { name: "thinking", label: "Thinking", kind: "choice" },
  { name: "seed", label: "Seed", min: Number.MIN_SAFE_INTEGER, max: Number.MAX_SAFE_INTEGER, step: 1, range: "an integer below 2\u2075\u00b3", default: "random", isRare: true },
  { name: "repetition_penalty", label: "Repetition penalty", min: 1e-6, max: 1e6, step: 0.05, range: "1 is off", isRare: true },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, range: "\u22122 to 2", default: 0, isRare: true },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, range: "\u22122 to 2", default: 0, isRare: true },
  { name: "stop", label: "Stop at", kind: "text", maxChars: 1024, isRare: true },
];
const NUMERAL = /^-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i; // what a field for numbers holds
const SHOWN_CHARS = 40; // of a text that is wrong
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

function control({ kind, min, max, step }) {
  if (kind === "choice") return element("select", ...THINKING.map(([value, label]) => new Option(label, value)));
  const input = element("input");
  input.type = kind ?? "number";
  if (!kind) Object.assign(input, { min: Math.floor(min), max, step }); // steps from 0, not from 1e-6
  input.placeholder = kind ? "nothing" : "default";
  input.autocomplete = "off";
  return input;
}

/** What a number must be: "a number from 0 to 2". */
function lawOf({ min, max, step }) {
  return `${step === 1 ? "an integer" : "a number"} from ${min} to ${max}`;
}

/** What is wrong with a setting, "must be ..., got ...", or "". An empty one is right: the model's default. */
function faultOf(field, value) {
  if (!field || !value) return "";
  const given = value.slice(0, SHOWN_CHARS);
  if (field.kind === "choice") return THINKING.some(([choice]) => choice === value) ? "" : `must be on or off, got ${given}`;
  if (field.kind === "text") return faultOfText(field, value);
  const { min, max, step } = field;
  const chosen = NUMERAL.test(value) ? Number(value) : NaN;
  const isRight = chosen >= min && chosen <= max && (step !== 1 || Number.isInteger(chosen));
  const law = step === 1 && Number.isFinite(chosen) && !Number.isInteger(chosen) ? "an integer" : lawOf(field);
  return isRight ? "" : `must be ${law}, got ${given}`;
}

function faultOfText({ maxChars }, value) {
  const numChars = [...value].length; // as the server counts them
  return numChars <= maxChars ? "" : `must have at most ${number.format(maxChars)} characters, got ${number.format(numChars)}`;
}

/** The settings that are right. */
function rightOf(settings) {
  const isRight = ([name, value]) => !faultOf(SAMPLING.find((field) => field.name === name), value);
  return Object.fromEntries(Object.entries(settings).filter(isRight));
}

/** What is wrong with a conversation's settings, in a sentence, or "". */
function faultIn(settings) {
  const faults = SAMPLING.map((field) => [field.label, faultOf(field, settings[field.name])]).filter(([, fault]) => fault);
  return faults.map(([label, fault]) => `${label} ${fault}`).join("; ");
}

/** The dialog. change: called with the name and the new value of what was changed; returns whether it may be. */
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
      if ([...this.controls.keys()].every((name) => change(name, ""))) this.fill({});
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
