// The connection that brings the events of locks. It is made again when it ends, and closed while the page is hidden.

import { events, list, Refusal } from './gateway.js';
import { Locks } from './locks.js';

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;
/** The pause between two lists. While a store is away, events may be missed again and again. */
const BETWEEN_LISTS_MS = 1_000;
/** A hidden page closes its connection. Over HTTP/1, a browser has six of them for all its tabs. */
const HIDDEN_MS = 10_000;
/** If a lock is still listed this long after its end, the page asks about it, and then no more often than that. */
const OVERDUE_MS = 5_000;
const BETWEEN_QUESTIONS_MS = 30_000;
/** If a timer is this late, the machine was asleep, and the page's clock may have stood still. */
const SLEPT_MS = 10_000;

/**
 * Keeps `locks` true for as long as it runs, and calls `changed` when they have changed. It tells `told` each new state:
 * - `connecting`;
 * - `live`;
 * - `away`, with an error: it tries again `at` that time;
 * - `refused`, with an error: it does not try again.
 *
 * In each state, `listed` says that it has just read a list of all held locks.
 */
export class Watch {
  locks = new Locks();
  /** When the last line of events came, by the clock on the wall: it goes on while the machine sleeps. */
  heardAt;
  #prefix;
  #changed;
  #told;
  #running;
  #failures = 0;
  #isLive = false;
  #listAgain = () => {};

  constructor({ changed, told }) {
    this.#changed = changed;
    this.#told = told;
    this.#mindVisibility();
    setInterval(this.#everySecond(), 1000);
    addEventListener('online', () => this.tryNow());
  }

  /** Watches the locks whose names begin with this, and no others. */
  start(prefix) {
    if (prefix !== this.#prefix) this.locks = new Locks();
    this.#prefix = prefix;
    this.#failures = 0;
    this.stop();
    this.#running = new AbortController();
    this.#run(this.#running.signal);
  }

  stop() {
    this.#running?.abort();
    this.#running = undefined;
  }

  /** Forgets everything. */
  forget() {
    this.locks = new Locks();
  }

  /** Ends a pause, and an attempt that has brought nothing yet, and makes the next attempt at once. */
  tryNow() {
    if (this.#running && !this.#isLive) this.start(this.#prefix);
  }

  async #run(stopped) {
    while (!stopped.aborted) {
      this.#told({ state: 'connecting' });
      const error = await this.#follow(stopped).catch(asRefusal);
      if (stopped.aborted) return;
      if (isFinal(error)) {
        this.stop();
        this.#told({ state: 'refused', error });
        return;
      }
      await this.#pause(error, stopped);
    }
  }

  async #pause(error, stopped) {
    const grown = Math.min(FIRST_PAUSE_MS * 2 ** this.#failures, LONGEST_PAUSE_MS);
    // When a gateway comes back, not all pages ask at the same moment.
    const pause = Math.max(grown * (0.75 + Math.random() / 2), error.retryAfterMs ?? 0);
    this.#failures += 1;
    this.#told({ state: 'away', error, at: performance.now() + pause });
    await new Promise((resolve) => {
      setTimeout(resolve, pause);
      stopped.addEventListener('abort', resolve, { once: true });
    });
  }

  /** One connection, until it ends. The error says why it ended. */
  async #follow(stopped) {
    const { locks } = this;
    const connection = new AbortController();
    const end = () => connection.abort();
    stopped.addEventListener('abort', end, { once: true });
    let failure;
    const listAll = oneAtATime(async () => {
      await this.#list(locks, connection.signal);
      this.#failures = 0;
      this.#isLive = true;
      this.#told({ state: 'live' });
    });
    const listAgain = () => {
      listAll().catch((error) => {
        failure ??= error;
        end();
      });
    };
    this.#listAgain = listAgain;
    try {
      for await (const event of events(this.#prefix, connection.signal)) {
        this.heardAt = Date.now();
        // The first event is a `resync`. After it, nothing is missed.
        if (event.event === 'resync') listAgain();
        else if (event.key !== undefined) locks.apply(event, performance.now());
        if (locks.hasRoomAgain) listAgain();
        this.#changed();
      }
      return new Refusal(0, { title: 'The gateway has closed the connection.' });
    } catch (error) {
      // If there are too many watchers, a list now and then is better than nothing.
      if (error.type === 'too-many-watchers') await this.#list(locks, stopped);
      return asRefusal(failure ?? error);
    } finally {
      this.#isLive = false;
      // The next connection may have begun.
      if (this.#listAgain === listAgain) this.#listAgain = () => {};
      end();
      stopped.removeEventListener('abort', end);
    }
  }

  async #list(locks, signal) {
    // The pause before it may have outlived its connection.
    signal.throwIfAborted();
    locks.beginListing();
    for await (const page of list(this.#prefix, signal)) {
      signal.throwIfAborted();
      const isRoom = locks.addPage(page.locks, page.askedAt);
      this.#changed();
      if (!isRoom) break;
    }
    locks.endListing();
    this.#told({ state: 'listed' });
    this.#changed();
  }

  #mindVisibility() {
    let timer;
    let isAsleep = false;
    document.addEventListener('visibilitychange', () => {
      clearTimeout(timer);
      if (document.hidden) {
        timer = setTimeout(() => {
          isAsleep = this.#running !== undefined;
          this.stop();
        }, HIDDEN_MS);
      } else if (isAsleep) {
        isAsleep = false;
        this.start(this.#prefix);
      }
    });
  }

  #everySecond() {
    let last = Date.now();
    let askedAt = performance.now();
    return () => {
      const hasSlept = Date.now() - last > SLEPT_MS;
      last = Date.now();
      if (this.#running === undefined || document.hidden) return;
      if (hasSlept) {
        this.start(this.#prefix);
        return;
      }
      const now = performance.now();
      if (now - askedAt > BETWEEN_QUESTIONS_MS && this.locks.hasOverdue(now - OVERDUE_MS)) {
        askedAt = now;
        this.#listAgain();
      }
    };
  }
}

/** Any other error is one of the connection. */
const asRefusal = (error) =>
  error instanceof Refusal ? error : new Refusal(0, { title: 'The connection was lost.' });

/** Whether the same request would be refused again: its key or a right is missing, or it can never be fulfilled. */
const isFinal = ({ status }) => status >= 400 && status < 500 && status !== 429;

/** Does the work when it is called, a while after it was done last. If it is called during the work, the work is done once more. */
function oneAtATime(work) {
  let isWorking = false;
  let isAsked = false;
  let endedAt = -Infinity;
  return async () => {
    isAsked = true;
    if (isWorking) return;
    isWorking = true;
    try {
      while (isAsked) {
        const pause = endedAt + BETWEEN_LISTS_MS - performance.now();
        if (pause > 0) await new Promise((resolve) => setTimeout(resolve, pause));
        isAsked = false;
        await work();
        endedAt = performance.now();
      }
    } finally {
      isWorking = false;
    }
  };
}
