// Two turns with a tool over the official openai client of npm, over its chat and over its `responses`; the package lies
// where the second argument says. Its first argument and what it prints: see test_tool_loops.py.
import { createRequire } from "node:module";

const asked = JSON.parse(process.argv[2]);
const require = createRequire(`${process.argv[3]}/`);
const { default: OpenAI } = await import(require.resolve("openai"));

const client = new OpenAI({ baseURL: `${asked.base}/v1`, apiKey: "none", maxRetries: 0 });
const question = { role: "user", content: asked.question };
const hello = { role: "user", content: "Hello!" };

const chat = async (effort) => {
  const tools = [{ type: "function", function: asked.tool }];
  const body = { model: asked.model, tools, temperature: 0, max_tokens: 300, reasoning_effort: effort };
  const ask = async (messages) => (await client.chat.completions.create({ ...body, messages })).choices[0];
  const calls = (message) => (message.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]);
  const told = ({ message, finish_reason: reason }) => [calls(message), reason];
  const loop = async ({ message }) => {
    const results = message.tool_calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: asked.result }));
    const after = await ask([question, message, ...results]);
    return [after.message.content, ...told(after)];
  };
  const whole = await ask([question]);
  const stream = client.chat.completions.stream({ ...body, messages: [question] });
  const pieces = [];
  stream.on("tool_calls.function.arguments.delta", (event) => pieces.push(event.arguments_delta));
  const final = (await stream.finalChatCompletion()).choices[0];
  return {
    calls: told(whole),
    streamed: told(final),
    deltas: pieces.join(""),
    kinds: Boolean(whole.message.reasoning) === Boolean(final.message.reasoning),
    after: [await loop(whole), await loop(final)],
  };
};

const runs = async () => {
  const seen = [];
  const carryOut = (given) => {
    seen.push(given);
    return asked.result;
  };
  const own = { ...asked.tool, function: carryOut, parse: JSON.parse };
  const body = { model: asked.model, temperature: 0, max_tokens: 300, messages: [question] };
  const runner = client.chat.completions.runTools({ ...body, tools: [{ type: "function", function: own }] });
  return [await runner.finalContent(), seen];
};

const responses = async (effort) => {
  const tools = [{ type: "function", ...asked.tool }];
  const body = { model: asked.model, tools, temperature: 0, max_output_tokens: 300, reasoning: { effort } };
  const ask = (fields) => client.responses.create({ ...body, ...fields });
  const callsOf = ({ output }) => output.filter((item) => item.type === "function_call");
  const told = (response) => [callsOf(response).map((call) => [call.name, call.arguments]), response.status];
  const results = (response) =>
    callsOf(response).map(({ call_id }) => ({ type: "function_call_output", call_id, output: asked.result }));
  const after = (response) => [response.output_text, ...told(response)];
  const whole = await ask({ input: [question] });
  const stream = client.responses.stream({ ...body, input: [question] });
  const pieces = [];
  stream.on("response.function_call_arguments.delta", (event) => pieces.push(event.delta));
  const final = await stream.finalResponse();
  const kinds = [whole, final].map(({ output }) => output.map((item) => item.type).join(" "));
  const stateless = await ask({ input: [question, ...whole.output, ...results(whole)] });
  const stored = await ask({ input: results(final), previous_response_id: final.id });
  return {
    calls: told(whole),
    streamed: told(final),
    deltas: pieces.join(""),
    kinds: kinds[0] === kinds[1],
    after: [after(stateless), after(stored)],
  };
};

const must = async () => {
  const { name } = asked.tool;
  const body = { model: asked.model, temperature: 0 };
  const named = [];
  for (const choice of ["required", { type: "function", name }]) {
    const tools = [{ type: "function", ...asked.tool }];
    const response = await client.responses.create({ ...body, input: [hello], tools, tool_choice: choice });
    named.push(response.output.find((item) => item.type === "function_call").name);
  }
  for (const choice of ["required", { type: "function", function: { name } }]) {
    const tools = [{ type: "function", function: asked.tool }];
    const answer = await client.chat.completions.create({ ...body, messages: [hello], tools, tool_choice: choice });
    named.push(answer.choices[0].message.tool_calls[0].function.name);
  }
  return named;
};

const seen = { chat: {}, responses: {} };
for (const effort of ["none", "low"]) {
  seen.chat[effort] = await chat(effort);
  seen.responses[effort] = await responses(effort);
}
console.log(JSON.stringify({ ...seen, runs: await runs(), must: await must() }));
