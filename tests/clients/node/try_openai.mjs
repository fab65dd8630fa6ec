// OpenAI's own client for Node.
import OpenAI, { NotFoundError } from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { Answer, ASK, KEY, MODEL, REFUSAL, Seen, UNKNOWN, URL } from "./seen.mjs";

// configuration
const client = new OpenAI({ baseURL: URL, apiKey: KEY });
// end

const seen = new Seen("openai");
const short = { model: MODEL, messages: ASK, temperature: 0, max_tokens: 20 };

const done = await client.chat.completions.create(short);
seen.check("chat", done.choices[0].message.content.includes("Paris"), done);
seen.check("chat", done.usage.total_tokens > 20, done);
const models = await client.models.list();
seen.check("models", models.data.length > 0, models);

let text = "";
let last;
const asked = { ...short, stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create(asked)) {
  text += chunk.choices[0]?.delta.content ?? "";
  last = chunk;
}
seen.check("stream", text.includes("Paris"), text);
seen.check("stream usage", last.choices.length === 0 && last.usage.completion_tokens > 0, last);

const parsed = await client.chat.completions.parse({
  ...short,
  max_tokens: 60,
  response_format: zodResponseFormat(Answer, "answer"),
});
seen.check("structured output", Answer.parse(parsed.choices[0].message.parsed), parsed);

const sampled = { model: MODEL, messages: ASK, max_tokens: 4 };
const two = await client.chat.completions.create({ ...sampled, n: 2, logprobs: true });
seen.check("n", two.choices.length === 2, two);
seen.check("logprobs", two.choices.every((choice) => choice.logprobs.content.length > 0), two);
const begun = { model: MODEL, prompt: "The capital of France is", temperature: 0, max_tokens: 8 };
const old = await client.completions.create(begun);
seen.check("completions", old.choices[0].text.includes("Paris"), old);

const failure = await seen.failure(() => client.chat.completions.create({ ...short, model: UNKNOWN }));
seen.check("error", failure instanceof NotFoundError && failure.code === "model_not_found", failure);
seen.check("error", failure.message.includes(REFUSAL), failure);
seen.end();
