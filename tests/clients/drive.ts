/** Does what a test says, line by line, with the client in examples/clients, and says what came of it. */
import { createInterface } from "node:readline";
import { env, stdin } from "node:process";
import { Busy, Fencepost, Lease, Lost, Unknown } from "./fencepost.js";

/** What work may throw. */
class Failed extends Error {}

const lines = createInterface({ input: stdin })[Symbol.asyncIterator]();
const said = async (): Promise<string[] | undefined> => {
  const line = await lines.next();
  return line.done ? undefined : line.value.split(" ");
};
const say = (answer: string) => console.log(answer);

const fencepost = new Fencepost(env.FENCEPOST_URL ?? "", Number(env.RETRY_FOR_S) * 1000, 1_000);
let lease: Lease | undefined;

async function hold(key: string, ttlMs: number, waitMs: number): Promise<void> {
  await fencepost.hold(key, { ttlMs, waitMs }, async (lease) => {
    say(`granted ${lease.fencingToken}`);
    for (let words = await said(); words && words[0] !== "leave"; words = await said()) {
      if (words[0] === "fail") throw new Failed();
      const { signal } = lease.end;
      if (words[0] === "lost" && !signal.aborted) {
        await new Promise((told) => signal.addEventListener("abort", told));
      }
      lease.check();
      say("held");
    }
  });
  say("released");
}

async function act([verb, ...args]: string[]): Promise<void> {
  if (verb === "acquire") {
    const [key = "", ttl, wait] = args;
    lease = await fencepost.acquire(key, { ttlMs: Number(ttl) * 1000, waitMs: Number(wait) * 1000 });
    say(`granted ${lease.fencingToken}`);
  } else if (verb === "renew" && lease) {
    await fencepost.renew(lease, Number(args[0]) * 1000);
    say("renewed");
  } else if (verb === "release" && lease) {
    await fencepost.release(lease);
    say("released");
  } else if (verb === "hold") {
    await hold(args[0] ?? "", Number(args[1]) * 1000, Number(args[2]) * 1000);
  } else {
    throw new Error(`what is ${verb}?`);
  }
}

for (let words = await said(); words; words = await said()) {
  await act(words).catch((error: unknown) => {
    const known = [Busy, Lost, Unknown, Failed].find((kind) => error instanceof kind);
    if (!known) throw error;
    say(known.name.toLowerCase());
  });
}
