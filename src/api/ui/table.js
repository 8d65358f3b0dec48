// The rows of the table, one for each shown lock. Only what has changed is written.

/** Characters that the eye cannot tell: spaces at an end or in a row, and characters without a shape. */
const UNSEEN =
  /^ +| +$| {2,}|[\p{Cf}\p{Cc}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800\ufffc\u{16fe4}\u{1d159}]|(?! )\p{Zs}/gu;

/** Shows what a stranger chose as text, with a sign for each character that could not be seen. */
export function write(element, text) {
  const parts = [];
  let at = 0;
  for (const { 0: unseen, index } of text.matchAll(UNSEEN)) {
    parts.push(text.slice(at, index), sign(unseen));
    at = index + unseen.length;
  }
  element.replaceChildren(...parts, text.slice(at));
}

function sign(unseen) {
  const element = document.createElement('span');
  element.className = 'sign';
  element.textContent = unseen[0] === ' '
    ? '·'.repeat(unseen.length)
    : `U+${unseen.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}`;
  return element;
}

/** What is left of a lease, for people. It never says more than there is. */
export function duration(ms) {
  if (ms <= 0) return 'ending';
  const seconds = Math.floor(ms / 1000);
  const [h, min, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  const two = (number) => String(number).padStart(2, '0');
  if (h) return `${h} h ${two(min)} min`;
  if (min) return `${min} min ${two(s)} s`;
  return seconds ? `${s} s` : '< 1 s';
}

/** A lease that ends within this time stands out. */
const SOON_MS = 10_000;

/** A lock that was granted within this time is shown as new. */
const FRESH_MS = 1_000;

function focusRow(row) {
  const place = row?.isConnected ? row.querySelector('button') : document.getElementById('prefix');
  place.focus();
}

/** Writes a text of the page itself, if it is another one than before: each writing of an alert is read out. */
export function showText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows what is left of a lease. */
export function showLeft(element, lock, now) {
  const left = lock.endsAt - now;
  showText(element, duration(left));
  element.classList.toggle('soon', left < SOON_MS);
}

/** Shows who holds a lock, in its row and in the question alike. `old` is what the element shows. */
export function showHolder(element, lock, old) {
  if (old.owner === lock.owner && old.isReleased === lock.isReleased) return;
  const owner = element.querySelector('bdi');
  write(owner, lock.owner);
  owner.classList.toggle('none', !lock.owner);
  element.querySelector('.released').textContent = lock.isReleased ? 'released, kept for its min_hold' : '';
}

export class Table {
  #body;
  #template = document.getElementById('row').content.firstElementChild;
  #rows = new Map();
  /** The row that was removed last, and the one behind it. */
  #gone = {};
  #breakLock;

  constructor(body, breakLock) {
    this.#body = body;
    this.#breakLock = breakLock;
  }

  /** Shows these locks, in this order. */
  show(locks, now) {
    const focused = document.activeElement;
    const wanted = new Set(locks.map((lock) => lock.key));
    for (const [key, row] of this.#rows) {
      if (!wanted.has(key)) this.#remove(key, row);
    }
    let next = this.#body.firstElementChild;
    for (const lock of locks) {
      const row = this.#rows.get(lock.key) ?? this.#add(lock, now);
      if (row.element === next) next = next.nextElementSibling;
      else this.#body.insertBefore(row.element, next);
      this.#fill(row, lock);
    }
    // A row that was moved has lost the focus.
    if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
    this.tick(now);
  }

  /** Shows the times again. Nothing else has changed. */
  tick(now) {
    for (const { left, lock } of this.#rows.values()) showLeft(left, lock, now);
  }

  /** Moves the focus to the button of a lock. If the lock has gone, to that of the row behind it. */
  focus(key) {
    const row = this.#rows.get(key)?.element ?? (this.#gone.key === key ? this.#gone.neighbor : null);
    focusRow(row);
  }

  #add(lock, now) {
    const element = this.#template.cloneNode(true);
    element.classList.toggle('fresh', now - lock.grantedAt < FRESH_MS);
    const cell = (name) => element.querySelector(name);
    const row = {
      element,
      owner: cell('.owner'),
      left: cell('.left'),
      waiters: cell('.waiters'),
      fence: cell('.fence'),
      button: cell('button'),
      lock: {},
    };
    write(cell('.key bdi'), lock.key);
    // A long name is cut on the page.
    cell('.key').title = lock.key;
    // The signs are included, since names that look the same sound the same.
    row.button.setAttribute('aria-label', `Break ${cell('.key').textContent}`);
    row.button.addEventListener('click', () => this.#breakLock(row.lock));
    this.#rows.set(lock.key, row);
    return row;
  }

  #fill(row, lock) {
    const old = row.lock;
    row.lock = lock;
    showHolder(row.owner, lock, old);
    if (old.waiters !== lock.waiters) {
      row.waiters.textContent = lock.waiters;
      row.waiters.classList.toggle('none', !lock.waiters);
    }
    if (old.fencingToken !== lock.fencingToken) row.fence.textContent = lock.fencingToken;
  }

  #remove(key, { element, button }) {
    // If the focus was on this row, it moves to the next row, not to the top of the page.
    const neighbor = element.nextElementSibling ?? element.previousElementSibling;
    if (button === document.activeElement) focusRow(neighbor);
    this.#gone = { key, neighbor };
    element.remove();
    this.#rows.delete(key);
  }
}
