// Those who hold a lock by slots, from whom the question of the page lets one choose.

import { look } from './gateway.js';
import { duration, write } from './table.js';

const box = document.getElementById('breaking-several');
const list = document.getElementById('breaking-holders');
const template = document.getElementById('holder').content.firstElementChild;
let asked = 0;

/**
 * Asks who holds a lock, and shows them if they share it. `chosen` is told who is chosen, at first the one of this
 * fencing token. Once `isStillAsked` says no, nothing is shown any more.
 */
export async function showSharers(key, fencingToken, isStillAsked, chosen) {
  const mine = ++asked;
  box.hidden = true;
  list.replaceChildren();
  // A key that may not look can still break the one that the list has shown.
  const lock = await look(key).catch(() => ({}));
  if (!lock.holders || mine !== asked || !isStillAsked()) return;
  const now = performance.now();
  const holders = lock.holders.filter((holder) => !holder.released);
  for (const holder of holders) {
    const row = template.cloneNode(true);
    const radio = row.querySelector('input');
    write(row.querySelector('bdi'), holder.owner ?? 'not named');
    row.querySelector('.slot').textContent = `slot ${holder.slot}, ${duration(holder.expires_in_ms)} left`;
    const grant = { owner: holder.owner ?? '', fencingToken: holder.fencing_token, endsAt: now + holder.expires_in_ms };
    radio.addEventListener('change', () => chosen(grant));
    list.append(row);
    if (holder.fencing_token !== fencingToken) continue;
    radio.checked = true;
    chosen(grant);
  }
  document.getElementById('breaking-held').textContent = `${lock.held} of at most ${lock.slots} hold it. Whose grant?`;
  box.hidden = holders.length === 0;
}
