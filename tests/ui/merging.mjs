// Lists and events that arrive late and in any order: what the page knows of the locks in the end.

import { readFileSync } from 'node:fs';
import { assert } from './check.mjs';

const RUNS = 2_000;
/** How many locks a page of a list has. */
const PAGE = 1_000;
const KEYS = ['a', 'b', 'c'];
/** Two hold it by slots. No event tells of their grants, and a list has the one that ends first. */
const SHARED = 'shared';
/** Of a store that was restored: its fencing tokens have fallen below that of a grant whose end was told. */
const RESTORED = 'restored';

export async function merging() {
  const source = readFileSync(new URL('../../src/api/ui/locks.js', import.meta.url));
  const { Locks, MOST_LOCKS } = await import(`data:text/javascript,${encodeURIComponent(source)}`);
  for (let seed = 1; seed <= RUNS; seed += 1) run(new Locks(), seed);
  console.log(`${RUNS} runs`);
  itKnowsWhoWaits(new Locks());
  itHasRoomAgain(new Locks(), MOST_LOCKS);
  aLaterListIsAsLong(new Locks(), MOST_LOCKS);
}

/** No event tells again of those who wait while the lock goes from one holder to the next. */
function itKnowsWhoWaits(locks) {
  const granted = (number) => locks.apply({ event: 'granted', key: 'k', fencing_token: number, ttl_ms: 1_000 }, 0);
  const waiting = (waiters) => locks.apply({ event: 'waiting', key: 'k', waiters }, 0);
  const shows = (waiters) => assert(locks.get('k').waiters === waiters, `${locks.get('k').waiters} wait, not ${waiters}`);
  granted(1);
  waiting(3);
  locks.apply({ event: 'released', key: 'k', fencing_token: 1 }, 0);
  granted(2);
  shows(3);
  locks.apply({ event: 'expired', key: 'k', fencing_token: 2 }, 0);
  waiting(1);
  granted(3);
  shows(1);
  // A list is newer than what was told before it began.
  locks.apply({ event: 'broken', key: 'k', fencing_token: 3 }, 0);
  locks.beginListing();
  locks.endListing();
  granted(4);
  shows(0);
}

/** As the page reads a list: until there is no room. It returns how many pages that took. */
function listAll(locks, held) {
  let pages = 0;
  locks.beginListing();
  for (let at = 0, isRoom = true; isRoom && at < held.length; at += PAGE) {
    isRoom = locks.addPage(held.slice(at, at + PAGE), 0);
    pages += 1;
  }
  locks.endListing();
  return pages;
}

const lock = (n) => ({ key: `k${n}`, fencing_token: n + 1, expires_in_ms: 1_000, waiters: 0 });

/** If more are held than are kept, a list takes the places of those that it has not. Else it would end with its first page. */
function aLaterListIsAsLong(locks, most) {
  let held = Array.from({ length: most + 5 * PAGE }, (_, n) => lock(n));
  const pages = listAll(locks, held);
  for (let n = 1; n <= 5; n += 1) {
    // Those that are new come first: those that were listed before have all places.
    held = [lock(held.length), lock(held.length + 1), ...held];
    assert(listAll(locks, held) <= pages, `list ${n} has an end`);
    assert(locks.size === most && locks.isCut, `${locks.size} are known after list ${n}`);
    assert(held.slice(0, most - PAGE).every(({ key }) => locks.get(key)), `list ${n} was read to its end`);
    assert(!locks.hasRoomAgain, `list ${n} is no reason for another`);
  }
  // While a list runs, those that it has not reached give way to grants, and the page knows it.
  locks.beginListing();
  assert(locks.isCut, 'a list that has only begun finds nothing');
  const granted = lock(held.length);
  locks.apply({ event: 'granted', ttl_ms: 1_000, ...granted }, 0);
  assert(locks.get(granted.key) && locks.size === most, 'a grant has a place');
  locks.endListing();
  assert(locks.size === 1 && !locks.isCut, 'the list had no others');
}

/** Of a list that was cut, all may end that was kept. */
function itHasRoomAgain(locks, most) {
  locks.beginListing();
  assert(!locks.addPage(Array.from({ length: most + 1 }, (_, n) => lock(n)), 0), 'there is room for no more');
  locks.endListing();
  for (let n = 0; n < most; n += 1) {
    if (n === 1) assert(!locks.hasRoomAgain, 'one end is no reason for another list');
    locks.apply({ event: 'released', key: `k${n}`, fencing_token: n + 1 }, 0);
  }
  assert(locks.size === 0 && locks.isCut && locks.hasRoomAgain, 'what was left out is listed next');
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
