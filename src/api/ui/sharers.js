// Those who hold a lock by slots, from whom the question of the page lets one choose.

import { look } from './gateway.js';
import { duration, showHolder, showText } from './table.js';

const box = document.getElementById('breaking-several');
const list = document.getElementById('breaking-holders');
const template = document.getElementById('holder').content.firstElementChild;
/** Their rows, by fencing token. */
const rows = new Map();

/** Asks who shares a lock. Of a lock that is free, or that one client holds alone, the answer is undefined. */
export async function sharersOf(key) {
  const askedAt = performance.now();
  const { holders, held, slots } = await look(key).catch((error) => {
    if (error.status === 404) return {};
    throw error;
  });
  if (!holders) return undefined;
  const grants = holders.map((holder) => ({
    key,
    owner: holder.owner ?? '',
    fencingToken: holder.fencing_token,
    isReleased: holder.released ?? false,
    endsAt: askedAt + holder.expires_in_ms,
    slot: holder.slot,
  }));
  // In the order of their slots, no row moves when another one is renewed, comes or goes.
  grants.sort((a, b) => a.slot - b.slot);
  return { grants, areAll: grants.length >= held, text: `${held} of at most ${slots} hold it. Whose grant?` };
}

/** Shows them, if there are any, and which one is chosen. `choose` is told of another one. Only what has changed is written. */
export function showSharers(sharers, chosen, choose, now) {
  const grants = sharers?.grants ?? [];
  box.hidden = !sharers;
  if (sharers) showText(document.getElementById('breaking-held'), sharers.text);
  const wanted = new Set(grants.map((grant) => grant.fencingToken));
  for (const [number, { element }] of rows) {
    if (wanted.has(number)) continue;
    element.remove();
    rows.delete(number);
  }
  let next = list.firstElementChild;
  for (const grant of grants) {
    const row = rows.get(grant.fencingToken) ?? add(grant.fencingToken, choose);
    if (row.element === next) next = next.nextElementSibling;
    else list.insertBefore(row.element, next);
    showHolder(row.element, grant, row.grant);
    row.grant = grant;
    showText(row.element.querySelector('.slot'), `slot ${grant.slot}, ${duration(grant.endsAt - now)} left`);
    row.element.querySelector('input').checked = grant.fencingToken === chosen;
  }
}

function add(number, choose) {
  const row = { element: template.cloneNode(true), grant: {} };
  row.element.querySelector('input').addEventListener('change', () => choose(number));
  rows.set(number, row);
  return row;
}
