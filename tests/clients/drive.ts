/** Does what a test says, line by line, with the client in examples/clients, and says what came of it. */
import { createInterface } from "node:readline";
import { env, stdin } from "node:process";
import { Fencepost, FencepostError, NothingDone, Refused, Superseded, type Lease, type Made, type Place } from "./fencepost.mjs";

/** What work may throw. */
class Failed extends Error {}

const lines = createInterface({ input: stdin })[Symbol.asyncIterator]();
const said = async (): Promise<string[] | undefined> => {
  const line = await lines.next();
  return line.done ? undefined : line.value.split(" ");
};
const say = (answer: string) => console.log(answer);

function opened(): Fencepost {
  try {
    return new Fencepost(undefined, { retryForMs: Number(env.RETRY_FOR_S) * 1000, tryForMs: Number(env.TRY_FOR_S) * 1000 });
  } catch (error) {
    if (error instanceof Refused) say(`refused\n${error.message}`);
    throw error;
  }
}
const fencepost = opened();
let lease: Lease<number | undefined> | undefined;
let last: FencepostError | undefined;

async function hold(key: string, ttlMs: number, waitMs: number): Promise<void> {
  await fencepost.hold(key, { ttlMs, waitMs }, async (held) => {
    lease = held;
    say(`granted ${held.fencingToken}`);
    for (let words = await said(); words && words[0] !== "leave"; words = await said()) {
      if (words[0] === "fail") throw new Failed();
      const { signal } = held;
      if (words[0] === "lost" && !signal.aborted) {
        await new Promise((told) => signal.addEventListener("abort", told));
      }
      held.check();
      say("held");
    }
  });
  say("released");
}

/** What work returns: much, what no request can carry, what is like a type, no result, nothing with a status, or a text. */
function made(word: string, place: Place): Made {
  if (word === "much") return "x".repeat(place.maxResultBytes + 1);
  if (word === "unsent") return { body: word, status: 1000, contentType: "text\n/plain" };
  if (word === "trimmed") return { body: word, status: 201, contentType: "application/json\n" };
  if (word === "five") return 5 as unknown as Made;
  if (word === "empty") return { body: "", status: 204 };
  return { body: word, status: 201, contentType: "application/json" };
}

async function once([key = "", ttl, wait, fingerprint, ...more]: string[]): Promise<void> {
  const options = {
    ttlMs: Number(ttl) * 1000, waitMs: Number(wait) * 1000, keepMs: 3_600_000, owner: "drive",
    takeover: !more.includes("keep-off"), ...(fingerprint && { fingerprint }),
  };
  const result = await fencepost.once(key, options, async (place) => {
    say(`works ${place.earlier} ${place.fencingToken}`);
    for (let words = await said(); ; words = await said()) {
      const { signal } = place, [word = ""] = words ?? [];
      if (word === "fail") throw new Failed();
      if (word === "nothing") throw new NothingDone();
      if (word === "inside") await fencepost.once(`${key}/inside`, {}, async () => { throw new NothingDone(); });
      if (word !== "lost") return made(word, place);
      if (!signal.aborted) await new Promise((told) => signal.addEventListener("abort", told));
      say("lost");
    }
  });
  const { body, status = "None", contentType = "None", wasReplayed, fencingToken } = result;
  say(`${wasReplayed ? "replayed" : "made"} ${body} ${status} ${contentType} ${fencingToken}`);
}

async function cancel(key: string, ttlMs: number, waitMs: number): Promise<void> {
  const controller = new AbortController();
  const acquiring = fencepost.acquire(key, { ttlMs, waitMs, signal: controller.signal });
  await said();
  controller.abort(new Failed());
  const error: unknown = await acquiring.catch((error: unknown) => error);
  say(error instanceof Failed ? "canceled" : `not canceled: ${error}`);
}

async function act([verb, ...args]: string[]): Promise<void> {
  if (verb === "acquire") {
    const [key = "", ttl, wait] = args;
    lease = await fencepost.acquire(key, { ttlMs: Number(ttl) * 1000, waitMs: Number(wait) * 1000 });
    say(`granted ${lease.fencingToken}`);
  } else if (verb === "share") {
    const [key = "", ttl, slots] = args;
    lease = await fencepost.acquire(key, { ttlMs: Number(ttl) * 1000, slots: slots === "any" ? slots : Number(slots) });
    say(`granted ${lease.fencingToken} ${lease.slot}`);
  } else if (verb === "both") {
    const [key = "", other = "", ttl, wait] = args;
    const both = await fencepost.acquire([key, other], { ttlMs: Number(ttl) * 1000, waitMs: Number(wait) * 1000 });
    // @ts-expect-error Each of them has its own, so there is no such number.
    both.fencingToken satisfies number;
    lease = both;
    say(`granted ${lease.fencingTokens[key]} ${lease.fencingTokens[other]}`);
  } else if (verb === "renew" && lease) {
    await fencepost.renew(lease, args[0] ? Number(args[0]) * 1000 : undefined);
    say("renewed");
  } else if (verb === "release" && lease) {
    await fencepost.release(lease);
    say("released");
  } else if (verb === "hold") {
    await hold(args[0] ?? "", Number(args[1]) * 1000, Number(args[2]) * 1000);
  } else if (verb === "check" && lease) {
    lease.check();
    say("held");
  } else if (verb === "once") {
    await once(args);
  } else if (verb === "number" && last instanceof Superseded) {
    say(String(last.fencingToken));
  } else if (verb === "cancel") {
    await cancel(args[0] ?? "", Number(args[1]) * 1000, Number(args[2]) * 1000);
  } else if (verb === "why" && last) {
    const { status, type, detail, holder, retryAfterMs = null } = last;
    say(JSON.stringify([status, type, detail, holder, retryAfterMs && retryAfterMs / 1000, last.message]));
  } else {
    throw new Error(`what is ${verb}?`);
  }
}

for (let words = await said(); words; words = await said()) {
  await act(words).catch((error: unknown) => {
    if (error instanceof FencepostError) last = error;
    else if (!(error instanceof Failed || error instanceof NothingDone || error instanceof TypeError)) throw error;
    say(error.constructor.name.toLowerCase());
  });
}
