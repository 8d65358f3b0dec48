// The requests to the gateway, and the key that they show.

const KEY = 'fencepost-key';
/** How many locks a page of the list may have. */
const PAGE = 1000;
/** The gateway sends something every 10 s. After this long without a byte, it is gone. So it is if an answer takes as long. */
const LONGEST_SILENCE_MS = 25_000;
/** No line of events is this long. A longer one is not a line of events. */
const LONGEST_LINE = 100_000;

let apiKey = '';
try {
  // It belongs to this tab alone, and is gone when the tab is closed.
  apiKey = sessionStorage.getItem(KEY) ?? '';
} catch {
  // If the browser stores nothing, the key lives as long as the page.
}

export const hasKey = () => apiKey !== '';

export function useKey(key) {
  apiKey = key.trim();
  try {
    if (apiKey) sessionStorage.setItem(KEY, apiKey);
    else sessionStorage.removeItem(KEY);
  } catch {
    // As above.
  }
}

/** Why a request failed, in the gateway's own words. Status 0: the answer did not come from the gateway. */
export class Refusal extends Error {
  constructor(status, problem, retryAfterMs = 0) {
    super(sentence(problem.detail));
    this.status = status;
    this.type = String(problem.type ?? '').replace('/problems/', '');
    this.title = sentence(problem.title);
    this.retryAfterMs = retryAfterMs;
  }

  /** All that is known about it. */
  get text() {
    return `${this.title} ${this.message}`.trim();
  }
}

/** Details are written to stand behind a colon. */
function sentence(text = '') {
  return text && text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? '' : '.');
}

const notAGateway = (status) => new Refusal(0, { title: `Something that is not the gateway answered (${status}).` });

async function call(method, address, { accept = 'application/json', signal } = {}) {
  const headers = { Accept: accept };
  if (apiKey) headers.Authorization = `Bearer ${apiKey}`;
  const request = new AbortController();
  const either = signal ? AbortSignal.any([signal, request.signal]) : request.signal;
  let response;
  try {
    response = await unlessSilent(fetch(address, { method, headers, signal: either, cache: 'no-store' }));
  } catch (error) {
    request.abort();
    if (signal?.aborted || error instanceof Refusal) throw error;
    throw new Refusal(0, { title: 'The gateway cannot be reached.' });
  }
  const type = response.headers.get('Content-Type') ?? '';
  if (response.ok) {
    // A sign-in page of a proxy, say. Each answer of the gateway has an id.
    const isWhole = response.status === 204 ? response.headers.has('X-Request-Id') : type.startsWith(accept);
    if (!isWhole) throw notAGateway(response.status);
    return response;
  }
  const isOurs = type.startsWith('application/problem+json');
  const problem = isOurs ? await response.json().catch(() => null) : null;
  if (!problem) throw notAGateway(response.status);
  throw new Refusal(response.status, problem, Number(response.headers.get('Retry-After')) * 1000 || 0);
}

/**
 * The held locks whose names begin with this, page by page. With each page comes the moment at which it was asked for.
 */
export async function* list(prefix, signal) {
  let cursor = '';
  do {
    const askedAt = performance.now();
    const query = new URLSearchParams({ prefix, limit: PAGE });
    if (cursor) query.set('cursor', cursor);
    const answer = await unlessSilent((await call('GET', `locks?${query}`, { signal })).json());
    yield { locks: answer.locks, askedAt };
    cursor = answer.next_cursor;
  } while (cursor);
}

/** The events of the locks whose names begin with this. */
export async function* events(prefix, signal) {
  const query = new URLSearchParams({ prefix });
  const response = await call('GET', `events?${query}`, { accept: 'application/x-ndjson', signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    let rest = '';
    for (;;) {
      const { value, done } = await unlessSilent(reader.read());
      if (done) return;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      if (rest.length > LONGEST_LINE) throw notAGateway(response.status);
      for (const line of lines.filter(Boolean)) yield JSON.parse(line);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function unlessSilent(read) {
  let timer;
  const silence = new Promise((_, reject) => {
    const gone = () => reject(new Refusal(0, { title: 'The gateway has fallen silent.' }));
    timer = setTimeout(gone, LONGEST_SILENCE_MS);
  });
  try {
    return await Promise.race([read, silence]);
  } finally {
    clearTimeout(timer);
  }
}

/** Who holds a lock. */
export async function look(key) {
  const query = new URLSearchParams({ key, holders: 'true' });
  return unlessSilent((await call('GET', `lock?${query}`)).json());
}

/** Breaks a lock if this grant still holds it. */
export async function breakLock(key, fencingToken) {
  const query = new URLSearchParams({ key, force: 'true', fencing_token: fencingToken });
  await call('DELETE', `lock?${query}`);
}
