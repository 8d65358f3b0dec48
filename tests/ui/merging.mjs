// Lists and events that arrive late and in any order: what the page knows of the locks in the end.

import { readFileSync } from 'node:fs';
import { assert } from './check.mjs';

const RUNS = 2_000;
const KEYS = ['a', 'b', 'c'];
/** Two hold it by slots. No event tells of their grants, and a list has the one that ends first. */
const SHARED = 'shared';
/** Of a store that was restored: its fencing tokens have fallen below that of a grant whose end was told. */
const RESTORED = 'restored';

export async function merging() {
  const source = readFileSync(new URL('../../src/api/ui/locks.js', import.meta.url));
  const { Locks } = await import(`data:text/javascript,${encodeURIComponent(source)}`);
  for (let seed = 1; seed <= RUNS; seed += 1) run(new Locks(), seed);
  console.log(`${RUNS} runs`);
}

/** The same numbers for the same seed. */
function randomness(seed) {
  let state = seed * 2_654_435_761;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

function run(locks, seed) {
  const random = randomness(seed);
  const truth = new Map();
  /** What has been told, and not arrived. */
  const events = [];
  let fence = 0;
  const live = (steps, arrive) => {
    for (let step = 0; step < steps; step += 1) {
      const key = KEYS[random(KEYS.length)];
      const held = truth.get(key);
      if (!held) {
        fence += 1;
        truth.set(key, { key, fencing_token: fence, expires_in_ms: 1_000 });
        events.push({ event: 'granted', key, fencing_token: fence, ttl_ms: 1_000 });
      } else if (random(3) === 0) {
        truth.set(key, { ...held, expires_in_ms: held.expires_in_ms + 1_000 });
        events.push({ event: 'renewed', key, fencing_token: held.fencing_token, ttl_ms: held.expires_in_ms + 1_000 });
      } else {
        truth.delete(key);
        events.push({ event: ['released', 'expired', 'broken'][random(3)], key, fencing_token: held.fencing_token });
      }
      // One overtakes another now and then, as those of two gateways may.
      while (arrive && events.length && random(2)) locks.apply(events.splice(random(events.length), 1)[0], 0);
    }
  };
  // Twice a stream begins, from when on nothing is missed. Then all is listed, one key after another. Between the two
  // nothing is heard.
  for (let stream = 0; stream < 2; stream += 1) {
    live(random(6), false);
    events.length = 0;
    live(random(4), true);
    truth.set(SHARED, { key: SHARED, fencing_token: 1 + random(2), expires_in_ms: 1_000 * (1 + random(3)) });
    if (random(2)) locks.apply({ event: 'released', key: RESTORED, fencing_token: 3 + random(2) }, 0);
    const restored = { key: RESTORED, fencing_token: 1 + random(2), expires_in_ms: 1_000 };
    const isInList = random(2) === 1;
    if (isInList) truth.set(RESTORED, restored);
    else truth.delete(RESTORED);
    locks.beginListing();
    for (const key of [...KEYS, SHARED, RESTORED]) {
      live(random(4), true);
      const page = truth.has(key) ? [truth.get(key)] : [];
      live(random(4), true);
      locks.addPage(page, 0);
    }
    locks.endListing();
    if (isInList) continue;
    // It was free, and the first grant since has a number below that of the end that was told.
    truth.set(RESTORED, restored);
    locks.apply({ event: 'granted', key: RESTORED, fencing_token: restored.fencing_token, ttl_ms: 1_000 }, 0);
  }
  for (const event of events) locks.apply(event, 0);
  const known = [...locks.values()].map((lock) => `${lock.key} ${lock.fencingToken} ${lock.endsAt}`).sort();
  const held = [...truth.values()].map((lock) => `${lock.key} ${lock.fencing_token} ${lock.expires_in_ms}`).sort();
  assert(String(known) === String(held), `run ${seed}: [${known}] is known, and [${held}] is held`);
}
