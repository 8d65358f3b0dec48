// What must be so, and what must come to be so.

/** How long anything that a test waits for may take. */
export const PATIENCE_MS = 60_000;

export function assert(isTrue, what) {
  if (!isTrue) throw new Error(`not so: ${what}`);
}

/** Polls until it holds; what else `holds` returns is told where it never does. */
export async function until(what, holds) {
  const giveUp = Date.now() + PATIENCE_MS;
  let last;
  do {
    last = await holds();
    if (last === true) return;
    await new Promise((resolve) => setTimeout(resolve, 25));
  } while (Date.now() < giveUp);
  throw new Error(`this did not come to pass: ${what} (${JSON.stringify(last)})`);
}
