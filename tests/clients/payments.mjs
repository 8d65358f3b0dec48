/** What stands for a database and a payment provider, where a test says when the provider answers. */
import { once } from "node:events";

const receipts = new Map();
export const counts = { looked: 0, charging: 0 };
export const provider = new EventTarget();

export async function findReceipt(order) {
  counts.looked += 1;
  return receipts.get(order);
}

export async function charge(order) {
  counts.charging += 1;
  await once(provider, "answer");
  return `receipt ${counts.charging} of ${order}`;
}

export async function keepReceipt(order, receipt) {
  receipts.set(order, receipt);
}
