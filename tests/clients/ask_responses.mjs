// The official openai client of npm and its `responses`; the package lies where the second argument says. Its first
// argument and what it prints: see test_clients.py.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const asked = JSON.parse(process.argv[2]);
const require = createRequire(`${process.argv[3]}/`);
const { default: OpenAI } = await import(require.resolve("openai"));

const { responses } = new OpenAI({ baseURL: asked.base, apiKey: asked.key, maxRetries: 0 });
const { extra_body: extra, ...rest } = asked.response;
const body = { ...rest, ...extra };
const ask = (changes) => responses.create({ ...body, ...changes });
const endOf = (response) => [response.output_text, response.status, response.incomplete_details?.reason ?? null];
const textOf = (events) => events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join("");
const failure = async (attempt) => {
  try {
    await attempt();
  } catch (error) {
    return [error.constructor.name, error.status, error.code, error.param];
  }
  return [];
};

const whole = await ask({ metadata: { a: "b" } });
const events = [];
for await (const event of await ask({ stream: true })) events.push(event);
const accumulating = responses.stream(body);
const pieces = [];
for await (const event of accumulating) pieces.push(event);
const final = await accumulating.finalResponse();
const after = await ask({ input: asked.next, previous_response_id: whole.id });
const kept = await responses.retrieve(whole.id);
await responses.delete(whole.id);
const last = events.at(-1).response;
const seen = {
  version: JSON.parse(readFileSync(`${process.argv[3]}/node_modules/openai/package.json`)).version.split(".")[0],
  answer: endOf(whole),
  usage: [whole.usage.input_tokens, whole.usage.output_tokens, whole.usage.total_tokens],
  streamed: textOf(events),
  events: events.map((event) => event.type).filter((type, index, types) => type !== types[index - 1]),
  last: [last.output[0].content[0].text, ...endOf(last).slice(1)],
  accumulated: [textOf(pieces), ...endOf(final)],
  after: endOf(after),
  kept: [...endOf(kept), kept.metadata],
  forgotten: await failure(() => responses.retrieve(whole.id)),
  bad_value: await failure(() => ask({ temperature: 3 })),
  too_long: await failure(() => ask({ max_output_tokens: 10 ** 9 })),
};
console.log(JSON.stringify(seen));
