/**
 * What stands for a database and a payment provider, where a test says when the provider answers. Like most providers,
 * it keeps its first answer to an idempotency key, also if the card is declined.
 */
import { once } from "node:events";

const receipts = new Map(), attempts = new Map(), kept = new Map();
let hasAnswered = false;
export const counts = { looked: 0, charging: 0 };
export const provider = new EventTarget();
provider.addEventListener("answer", () => { hasAnswered = true; });

export class Declined extends Error {}
export class ProviderAway extends Error {}

export async function findReceipt(order) {
  counts.looked += 1;
  return receipts.get(order);
}

export async function charge(order) {
  counts.charging += 1;
  if (order === "away") throw new ProviderAway("the provider does not answer");
  const attempt = attempts.get(order) ?? 1, key = `${order}-${attempt}`;
  if (!hasAnswered) await once(provider, "answer");
  const isDeclined = order === "declined" && ![...kept.keys()].some((other) => other.startsWith("declined-"));
  if (!kept.has(key)) kept.set(key, isDeclined ? undefined : `receipt ${counts.charging} of ${order}`);
  if (!kept.get(key)) {
    attempts.set(order, attempt + 1);
    throw new Declined(order);
  }
  return kept.get(key);
}

export async function keepReceipt(order, receipt) {
  receipts.set(order, receipt);
}
