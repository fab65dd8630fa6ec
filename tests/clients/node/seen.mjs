// What the scenarios share: where the server is, what was seen, one JSON line at the end.
import { readFileSync } from "node:fs";
import { z } from "zod";

export const URL = process.env.SCENARIO_URL;
export const KEY = process.env.SCENARIO_KEY;
export const MODEL = "small";
export const UNKNOWN = "no-such-model";
export const QUESTION = "What is the capital of France?";
export const ASK = [{ role: "user", content: QUESTION }];
// What the server says of UNKNOWN; a client must let its user read it.
export const REFUSAL = "no-such-model";
// What structured output is asked for. Its values are enumerated, so that the smallest model ends.
export const Answer = z.object({ capital: z.enum(["Paris", "Rome", "Tokyo"]), sure: z.boolean() });

export class Seen {
  constructor(client) {
    this.client = client;
    this.checks = new Set();
  }

  // Note that this held, or end with an error.
  check(name, held, value) {
    if (!held) throw new Error(`${this.client}, ${name}: ${JSON.stringify(value, null, 1) ?? value}`);
    this.checks.add(name);
  }

  // What this throws, which it must.
  async failure(action) {
    try {
      await action();
    } catch (error) {
      return error;
    }
    throw new Error(`${this.client}: an unknown model was served`);
  }

  // The line that the test reads.
  end() {
    const { version } = JSON.parse(readFileSync(`node_modules/${this.client}/package.json`));
    console.log(JSON.stringify({ client: this.client, version, checks: [...this.checks].sort() }));
  }
}
