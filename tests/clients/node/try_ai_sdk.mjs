// The AI SDK with its provider for OpenAI-compatible services.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, Output, streamText } from "ai";
import { Answer, KEY, MODEL, QUESTION, REFUSAL, Seen, UNKNOWN, URL } from "./seen.mjs";

// configuration
const forebay = createOpenAICompatible({
  name: "forebay", baseURL: URL, apiKey: KEY, includeUsage: true, supportsStructuredOutputs: true,
});
// end

const seen = new Seen("@ai-sdk/openai-compatible");
const short = { model: forebay(MODEL), prompt: QUESTION, temperature: 0, maxOutputTokens: 20 };

const done = await generateText(short);
seen.check("chat", done.text.includes("Paris"), done.text);
seen.check("chat", done.usage.totalTokens > 20, done.usage);

const stream = streamText(short);
let text = "";
for await (const part of stream.textStream) text += part;
seen.check("stream", text.includes("Paris"), text);
const usage = await stream.usage;
seen.check("stream usage", usage.outputTokens > 0, usage);

const output = Output.object({ schema: Answer });
const structured = await generateText({ ...short, maxOutputTokens: 60, output });
seen.check("structured output", Answer.parse(structured.output), structured.text);

const failure = await seen.failure(() =>
  generateText({ ...short, model: forebay(UNKNOWN), maxRetries: 0 }),
);
seen.check("error", APICallError.isInstance(failure) && failure.statusCode === 404, failure);
seen.check("error", failure.message.includes(REFUSAL), failure);
seen.end();
