// The official openai client of npm, and its batches. Its argument and what it prints: see test_clients.py.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [asked, folder] = process.argv.slice(2);
const { base, key, chat } = JSON.parse(asked);
const { default: OpenAI, toFile } = await import(createRequire(`${folder}/`).resolve("openai"));
const ENDED = ["completed", "failed", "expired", "cancelled"];

const client = new OpenAI({ baseURL: base, apiKey: key, maxRetries: 0 });

async function failure(ask) {
  try {
    await ask();
  } catch (error) {
    return [error.constructor.name, error.status, error.code, error.param];
  }
  return [];
}

async function rowOf(id) {
  const [line] = (await (await client.files.content(id)).text()).trim().split("\n");
  return JSON.parse(line);
}

async function ids(list) {
  const found = [];
  for await (const item of list) found.push(item.id);
  return found;
}

const rows = [["good", {}], ["bad", { temperature: 3 }]].map(([custom_id, changes]) =>
  JSON.stringify({ custom_id, method: "POST", url: "/v1/chat/completions", body: { ...chat, ...changes } }),
);
const content = `${rows.join("\n")}\n`;
const sent = await client.files.create({ file: await toFile(Buffer.from(content), "rows.jsonl"), purpose: "batch" });
const begun = await client.batches.create({
  input_file_id: sent.id, endpoint: "/v1/chat/completions", completion_window: "24h", metadata: { a: "b" },
});
let batch = begun;
while (!ENDED.includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 50));
  batch = await client.batches.retrieve(begun.id);
}
const [answered, refused] = [await rowOf(batch.output_file_id), await rowOf(batch.error_file_id)];
const [choice] = answered.response.body.choices;
const { total, completed, failed } = batch.request_counts;
const again = await client.files.retrieve(sent.id);
const listed = [await ids(client.batches.list({ limit: 1 })), await ids(client.files.list({ limit: 1 }))];
const seen = {
  version: JSON.parse(readFileSync(`${folder}/node_modules/openai/package.json`)).version.split(".")[0],
  file: [sent.filename, sent.bytes === content.length, sent.purpose, JSON.stringify(again) === JSON.stringify(sent)],
  batch: [batch.status, batch.metadata, total, completed, failed],
  answer: [answered.custom_id, choice.message.content, choice.finish_reason],
  refusal: [refused.custom_id, refused.response.status_code, refused.error.code],
  listed: [listed[0].includes(begun.id), listed[1].includes(batch.output_file_id) && listed[1].includes(batch.error_file_id)],
  deleted: (await client.files.delete(sent.id)).deleted,
  forgotten: await failure(() => client.files.content(sent.id)),
  too_late: await failure(() => client.batches.cancel(begun.id)),
};
console.log(JSON.stringify(seen));
