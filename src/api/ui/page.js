// The page: what it shows, and what its buttons do.

import { breakLock, hasKey, useKey } from './gateway.js';
import { MOST_LOCKS } from './locks.js';
import { sharersOf, showSharers } from './sharers.js';
import { Table, duration, showHolder, showLeft, showText, write } from './table.js';
import { Watch } from './watch.js';

const at = (id) => document.getElementById(id);
const show = (id, isShown) => {
  at(id).hidden = !isShown;
};
const count = new Intl.NumberFormat('en');
const number = (n) => count.format(n);

/** How many rows are added at a time. A table of thousands would be slow, and nobody reads it. */
const ROWS = 200;
/** Changes are collected for this time, so that a busy gateway does not make the page flicker. */
const BETWEEN_DRAWS_MS = 200;
/** The search begins this long after the last letter. */
const TYPING_MS = 250;
/** If the connection is back within this time, the page does not mention that it was away. */
const SHORT_ABSENCE_MS = 1_500;

const orders = {
  key: (a, b) => (a.key < b.key ? -1 : 1),
  waiters: (a, b) => b.waiters - a.waiters || orders.key(a, b),
};

let prefix = prefixInAddress();
let order = 'key';
let rows = ROWS;
/** The state of the connection, as `Watch` told it. */
let connection = { state: 'connecting' };
/** Since when the connection is not live; and when the page was last known to be true, by the clock on the wall. */
let awaySince;
let listedAt;
/** Whether a list of this prefix was read to its end. */
let isListed = false;

const table = new Table(at('rows'), askToBreak);
const watch = new Watch({ changed: drawSoon, told: connectionIs });

// Showing the locks.

let isDrawing = false;
let drawnAt = -BETWEEN_DRAWS_MS;

function drawSoon() {
  if (isDrawing) return;
  isDrawing = true;
  setTimeout(() => {
    [isDrawing, drawnAt] = [false, performance.now()];
    draw();
  }, drawnAt + BETWEEN_DRAWS_MS - performance.now());
}

function draw() {
  const typed = at('prefix').value;
  // While a name is typed, the page shows what it already knows of it.
  const all = [...watch.locks.values()].filter((lock) => lock.key.startsWith(typed)).sort(orders[order]);
  table.show(all.slice(0, rows), performance.now());
  const isRefused = connection.state === 'refused';
  show('refused', isRefused);
  show('table', all.length > 0);
  const isKnown = knowsAll(typed);
  show('loading', all.length === 0 && !isKnown && !isRefused);
  show('nothing', all.length === 0 && isKnown);
  write(at('nothing-title'), typed ? `No lock is held whose name begins with “${typed}”` : 'No lock is held');
  show('nothing-hint', !typed);
  at('example').textContent = example();
  at('count').textContent = all.length ? held(all.length) : '';
  show('cut', watch.locks.isCut);
  at('cut').textContent =
    `The page keeps ${number(MOST_LOCKS)} locks at most, and others may be held. Type the beginning of a name to see those.`;
  const hidden = all.length - rows;
  show('more', hidden > 0);
  at('more-text').textContent = `${number(rows)} of ${number(all.length)} are shown.`;
  at('more-button').textContent = `Show ${number(Math.min(ROWS, hidden))} more`;
  drawQuestion();
}

/** Whether the page knows all locks whose names begin so. A list that was cut, or one of other names, does not. */
const knowsAll = (start) => isListed && !watch.locks.isCut && start.startsWith(prefix);

function example() {
  const line = `curl -X PUT '${new URL('locks/hello?ttl=1m&owner=me', location.href)}'`;
  return hasKey() ? `${line} -H @- <<<"Authorization: Bearer $FENCEPOST_API_KEY"` : line;
}

const held = (n) => `${number(n)}${watch.locks.isCut ? '+' : ''} ${n === 1 ? 'lock' : 'locks'} held`;

setInterval(() => {
  if (document.hidden) return;
  const now = performance.now();
  table.tick(now);
  drawQuestion();
  if (connection.state !== 'live') drawConnection();
}, 250);

// Showing the state of the connection.

function connectionIs(told) {
  if (told.state === 'listed') {
    if (!isListed) say(held(watch.locks.size), 'unseen');
    [isListed, listedAt] = [true, Date.now()];
    // News of a lock that several hold only say that the page should look.
    if (question) askWhoShares();
    return;
  }
  const wasLive = connection.state === 'live';
  if (told.state === 'live') {
    if (!at('away').hidden) say('Connected again', 'unseen');
    awaySince = undefined;
  } else {
    if (wasLive) listedAt = Math.max(listedAt, watch.heardAt);
    awaySince ??= performance.now();
  }
  // The error stays visible during the next attempt.
  connection = told.state === 'connecting' ? { ...told, error: connection.error } : told;
  if (told.state === 'refused') refuse(told.error);
  drawConnection();
}

/** Said of a first attempt that takes long. */
const UNANSWERED = { title: 'The gateway has not answered yet.', message: '' };

const words = {
  connecting: 'Connecting',
  live: 'Live',
  away: 'Not connected',
  refused: 'Refused',
  asking: 'Key needed',
};

function drawConnection() {
  const { state, at: tryAt } = connection;
  // Without a list, nothing is shown that could be old.
  const error = connection.error ?? (isListed ? UNANSWERED : undefined);
  const now = performance.now();
  const isAway = error !== undefined && ['away', 'connecting'].includes(state) && now - awaySince > SHORT_ABSENCE_MS;
  at('connection').dataset.state = state;
  at('connection').textContent = words[state];
  show('away', isAway);
  at('view').classList.toggle('stale', isAway);
  show('forget', hasKey());
  if (!isAway) return;
  at('away-what').textContent = error.title;
  at('away-why').textContent = error.message;
  const since = listedAt === undefined ? '' : `What is shown is ${duration(Math.max(1, Date.now() - listedAt))} old. `;
  at('away-when').textContent = since + (state === 'away' ? `Trying again in ${duration(tryAt - now)}.` : 'Trying…');
}

function refuse(error) {
  if (error.status === 401) {
    const why = hasKey() ? error.text : '';
    useKey('');
    askForKey(why);
    return;
  }
  // The key may allow other names: the search stays.
  at('refused-title').textContent = error.title.replace(/\.$/, '');
  at('refused-why').textContent = error.message;
  at('other-key').textContent = hasKey() ? 'Use another key' : 'Use a key';
  forget();
}

/** Without the key, nothing may stay visible that it allowed to see. */
function forget() {
  if (at('breaking').open) at('breaking').close();
  watch.forget();
  isListed = false;
  draw();
}

function askForKey(why) {
  watch.stop();
  forget();
  connection = { state: 'asking' };
  drawConnection();
  show('view', false);
  show('sign-in', true);
  at('sign-in-why').textContent = why;
  at('key').value = '';
  at('key').focus();
}

at('sign-in').addEventListener('submit', (event) => {
  event.preventDefault();
  const key = at('key').value.trim();
  if (!/^[\x21-\x7e]+$/.test(key)) {
    at('sign-in-why').textContent = 'That is no key: it has a character that no key has.';
    return;
  }
  useKey(key);
  at('key').value = '';
  begin();
});
at('other-key').addEventListener('click', () => askForKey(''));
at('retry').addEventListener('click', begin);
at('now').addEventListener('click', () => watch.tryNow());
at('forget').addEventListener('click', () => {
  useKey('');
  askForKey('');
});

// Searching.

function prefixInAddress() {
  try {
    return new URLSearchParams(location.hash.slice(1)).get('prefix') ?? '';
  } catch {
    return '';
  }
}

let typing;
at('prefix').addEventListener('input', () => {
  clearTimeout(typing);
  typing = setTimeout(() => search(at('prefix').value), TYPING_MS);
  draw();
});

function search(wanted) {
  if (wanted === prefix) return;
  prefix = wanted;
  // The server learns nothing of it: the browser keeps what stands behind #.
  history.replaceState(null, '', prefix ? `#${new URLSearchParams({ prefix })}` : location.pathname);
  begin();
}

function begin() {
  [isListed, rows] = [false, ROWS];
  connection = { state: 'connecting' };
  show('sign-in', false);
  show('view', true);
  watch.start(prefix);
  draw();
}

addEventListener('hashchange', () => {
  at('prefix').value = prefixInAddress();
  search(at('prefix').value);
});

addEventListener('keydown', (event) => {
  const isTyping = event.target.matches('input, dialog *');
  if (event.key !== '/' || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  at('prefix').select();
});

at('more-button').addEventListener('click', () => {
  rows += ROWS;
  draw();
});

for (const button of document.querySelectorAll('[data-sort]')) {
  button.addEventListener('click', () => {
    order = button.dataset.sort;
    for (const other of document.querySelectorAll('[data-sort]')) {
      const direction = order === 'key' ? 'ascending' : 'descending';
      other.closest('th').ariaSort = other === button ? direction : 'none';
    }
    draw();
  });
}

// Breaking a lock: the page first asks a question that names the lock. It only breaks the grant that it showed.

/**
 * The question: the `grant` that it is about, as it was told of last, and its `sharers`, if it is one of several. If breaking
 * it was tried, `isSent` says that the answer is not here yet, `refused` that the grant was over, and `problem` what else failed.
 */
let question;
/** How often it was asked who shares a lock. */
let looks = 0;

/** What the gateway says of a grant that is over. */
const OVER = { 404: 'Nobody holds it any more.', 409: 'Somebody else holds it now.' };

function askToBreak(lock) {
  write(at('breaking-key'), lock.key);
  askAbout(lock);
  askWhoShares();
  at('breaking').showModal();
  // Not by `autofocus`: a browser that has just loaded the page looks for that in the closed dialog, too.
  at('keep').focus();
}

function askAbout(grant, sharers) {
  question = { grant, sharers, shown: {} };
  drawQuestion();
}

/** Asks about another one of those who share the lock. */
function choose(number) {
  const { sharers } = question;
  askAbout(sharers.grants.find((grant) => grant.fencingToken === number), sharers);
}

async function askWhoShares() {
  const { key } = question.grant;
  looks += 1;
  const mine = looks;
  try {
    const sharers = await sharersOf(key);
    if (mine !== looks || question?.grant.key !== key) return;
    question.sharers = sharers;
    drawQuestion();
  } catch {
    // A key that may not look can still break the grant that the list has shown.
  }
}

/** Shows what is so by now: of the lock, and of what can be broken. */
function drawQuestion() {
  if (!question) return;
  const focused = document.activeElement;
  const now = performance.now();
  const { sharers, shown } = question;
  const { key, fencingToken } = question.grant;
  const lock = watch.locks.get(key);
  const known = (sharers?.grants ?? [lock]).find((grant) => grant?.fencingToken === fencingToken);
  const grant = known ?? question.grant;
  Object.assign(question, { grant, shown: grant });
  showHolder(at('breaking-holder'), grant, shown);
  show('breaking-risk', !grant.isReleased);
  showLeft(at('breaking-left'), grant, now);
  if (lock) showText(at('breaking-waiters'), String(lock.waiters));
  showText(at('breaking-fence'), String(fencingToken));
  showSharers(sharers, fencingToken, choose, now);
  // A change of the lock meanwhile must not be taken for the work of somebody else.
  const over = question.isSent ? '' : whyOver(known, lock);
  showText(at('breaking-problem'), over || (question.problem ?? ''));
  at('break').disabled = question.isSent || over !== '';
  if (!focused.isConnected || (over && focused === at('break'))) at('keep').focus();
}

/** Why there is nothing to break. It is empty if there is, as far as the page knows. */
function whyOver(known, lock) {
  const { grant, sharers, refused } = question;
  if (sharers) {
    const isOver = refused || (!known && sharers.areAll);
    return isOver ? 'This grant is over. To break another one, choose it.' : '';
  }
  let why = refused;
  if (!known && lock) why = OVER[409];
  else if (!known && knowsAll(grant.key)) why = OVER[404];
  return why ? `${why} There is nothing left to break here.` : '';
}

at('break').addEventListener('click', async () => {
  const asked = question;
  const { key, fencingToken } = asked.grant;
  Object.assign(asked, { isSent: true, problem: '' });
  drawQuestion();
  // The question may be about another grant by the time of the answer.
  const isAsked = () => at('breaking').open && question === asked;
  try {
    await breakLock(key, fencingToken);
    say(`Broken: ${key}`);
    if (isAsked()) at('breaking').close();
  } catch (error) {
    const refused = OVER[error.status];
    if (error.status === 401) refuse(error);
    else if (!isAsked()) say(`${key}: ${refused ?? error.text}`);
    else {
      Object.assign(asked, { isSent: false, refused, problem: error.text });
      drawQuestion();
      // It is lost with the button that was disabled, now or at the next frame, unless the person has moved it since.
      const isLost = [document.body, at('break')].includes(document.activeElement);
      if (isLost) at(at('break').disabled ? 'keep' : 'break').focus();
      if (refused) askWhoShares();
    }
  }
});
at('keep').addEventListener('click', () => at('breaking').close());
at('breaking').addEventListener('close', () => {
  // This comes after a while. The next question may be asked by then.
  if (at('breaking').open) return;
  const { key } = question.grant;
  question = undefined;
  table.focus(key);
});

// What screen readers announce. If it can be seen nowhere else on the page, it is shown for a while, too.

let saying;
function say(text, look = '') {
  clearTimeout(saying);
  write(at('said'), text);
  at('said').className = look;
  saying = setTimeout(() => at('said').replaceChildren(), 8_000);
}

at('prefix').value = prefix;
begin();
