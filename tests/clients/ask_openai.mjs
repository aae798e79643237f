// The official openai client of npm, whose package lies where the second argument says. Its first argument and what it
// prints: see test_clients.py.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const asked = JSON.parse(process.argv[2]);
const require = createRequire(`${process.argv[3]}/`);
const { default: OpenAI } = await import(require.resolve("openai"));

const connect = (apiKey) => new OpenAI({ baseURL: asked.base, apiKey, maxRetries: 0 });
const client = connect(asked.key);
const ask = (changes) => client.chat.completions.create({ ...asked.chat, ...changes });
const write = (changes) => client.completions.create({ ...asked.text, ...changes });
const all = async (iterable) => {
  const items = [];
  for await (const item of iterable) items.push(item);
  return items;
};
const failure = async (someone, changes) => {
  try {
    await someone.chat.completions.create({ ...asked.chat, ...changes });
  } catch (error) {
    return [error.constructor.name, error.status, error.code, error.param];
  }
  return [];
};
const usageOf = ({ usage }) => [usage.prompt_tokens, usage.completion_tokens];
const endOf = ({ message, finish_reason }) => [message.content, finish_reason];

const chat = await ask({ logprobs: true, top_logprobs: 2 });
const chunks = await all(await ask({ stream: true, stream_options: { include_usage: true } }));
const last = chunks.pop();
const text = (await write({ logprobs: 2 })).choices[0];
const pieces = await all(await write({ stream: true }));
const embedded = [await client.embeddings.create(asked.embedding)]; // which asks for base64
embedded.push(await client.embeddings.create({ ...asked.embedding, encoding_format: "float" }));
const seen = {
  version: JSON.parse(readFileSync(`${process.argv[3]}/node_modules/openai/package.json`)).version.split(".")[0],
  models: (await all(await client.models.list())).map((model) => model.id),
  chat: endOf(chat.choices[0]),
  usage: usageOf(chat),
  logprobs: chat.choices[0].logprobs.content.map((entry) => [entry.token, entry.top_logprobs.length]),
  streamed: [chunks.map((chunk) => chunk.choices[0].delta.content).join(""), chunks.at(-1).choices[0].finish_reason],
  streamed_usage: usageOf(last),
  text: [text.text, text.finish_reason],
  text_logprobs: text.logprobs.tokens,
  text_streamed: pieces.map((piece) => piece.choices[0].text).join(""),
  n: (await ask({ n: 2 })).choices.map((choice) => choice.message.content),
  stop: endOf((await ask({ stop: [asked.stop] })).choices[0]),
  embedded: embedded.map(({ data }) => data.map((item) => item.embedding)),
  no_model: await failure(client, { model: "gpt-9" }),
  bad_value: await failure(client, { temperature: 3 }),
  too_long: await failure(client, { max_tokens: 10 ** 9 }),
  no_key: await failure(connect("sk-of-a-stranger"), {}),
};
console.log(JSON.stringify(seen));
