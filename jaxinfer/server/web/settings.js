// The settings of a conversation: what they are, how they are shown, and how a request says them.

// default: where the server's own is not said in the model's card
const SAMPLING = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, range: "0 to 2" },
  { name: "top_p", label: "Top p", above: 0, max: 1, step: 0.05, range: "above 0, to 1" },
  { name: "top_k", label: "Top k", min: -1, step: 1, range: "0 is off" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.05, range: "0 to 1" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, range: "from 1", default: "what fits" },
  { name: "thinking", label: "Thinking", kind: "choice" },
  { name: "seed", label: "Seed", step: 1, range: "an integer", default: "random", isRare: true },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0, max: 2, step: 0.05, range: "1 is off", isRare: true },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, range: "\u22122 to 2", default: 0, isRare: true },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, range: "\u22122 to 2", default: 0, isRare: true },
  { name: "stop", label: "Stop at", kind: "text", isRare: true },
];
const THINKING = [
  ["", "Default"],
  ["on", "On"],
  ["off", "Off"],
];

/** The fields of a request that the settings ask for; what is empty is left out, and the server decides what is valid. */
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

/** Whether the server would take what a control holds, an empty one included. */
function isValid({ validity, value }, { above, step } = {}) {
  const { badInput, rangeUnderflow, rangeOverflow, stepMismatch } = validity;
  const isOff = value !== "" && Number(value) === above;
  return !badInput && !rangeUnderflow && !rangeOverflow && !isOff && !(step === 1 && stepMismatch);
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
      byId(field.isRare ? "sampling-more" : "sampling").append(element("label", field.label, range, made));
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
    made.setAttribute("aria-invalid", String(!isValid(made, field)));
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
  }
}
