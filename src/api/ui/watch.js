// The connection over which the page hears of locks: made again whenever it ends, and closed while nobody looks.

import { events, list, Refusal } from './gateway.js';
import { Locks } from './locks.js';

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;
/** Between two lists: events that may have been missed come in swarms when a store is away. */
const BETWEEN_LISTS_MS = 1_000;
/** A page that nobody sees gives its connection back: by HTTP/1 a browser has six of them for all its tabs. */
const HIDDEN_MS = 10_000;
/** A lock that is still listed so long after its end is asked about, not more often than that. */
const OVERDUE_MS = 5_000;
const BETWEEN_QUESTIONS_MS = 30_000;
/** A timer that comes so much too late has slept with the machine, and the page's clock may have stood still. */
const SLEPT_MS = 10_000;

/**
 * Keeps `locks` true for as long as it runs; `changed` is called when they are others. `told` is given each state that
 * it comes to: `connecting`; `live`; `away`, with an error, until it tries again `at` that time; and `refused`, with an
 * error, in which it rests. In any of them it may have `listed` all that are held at that moment.
 */
export class Watch {
  locks = new Locks();
  #prefix;
  #changed;
  #told;
  #running;
  #failures = 0;
  #tryNow = () => {};
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

  /** Knows nothing any more. */
  forget() {
    this.locks = new Locks();
  }

  /** Does at once what it waits to do. */
  tryNow() {
    this.#tryNow();
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
    // Not all pages at the same moment, when a gateway comes back.
    const pause = Math.max(grown * (0.75 + Math.random() / 2), error.retryAfterMs ?? 0);
    this.#failures += 1;
    this.#told({ state: 'away', error, at: performance.now() + pause });
    await new Promise((resolve) => {
      setTimeout(resolve, pause);
      stopped.addEventListener('abort', resolve, { once: true });
      this.#tryNow = resolve;
    });
  }

  /** One connection, to its end: the error says why it ended. */
  async #follow(stopped) {
    const { locks } = this;
    const connection = new AbortController();
    const end = () => connection.abort();
    stopped.addEventListener('abort', end, { once: true });
    let failure;
    const listAll = oneAtATime(async () => {
      await this.#list(locks, connection.signal);
      this.#failures = 0;
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
        // The first event is one: from then on nothing is missed.
        if (event.event === 'resync') listAgain();
        else if (event.key !== undefined) locks.apply(event, performance.now());
        this.#changed();
      }
      return new Refusal(0, { title: 'The gateway has closed the connection.' });
    } catch (error) {
      // Where no more may watch, a list now and then is better than nothing.
      if (error.type === 'too-many-watchers') await this.#list(locks, stopped);
      return asRefusal(failure ?? error);
    } finally {
      // The next connection may have begun.
      if (this.#listAgain === listAgain) this.#listAgain = () => {};
      end();
      stopped.removeEventListener('abort', end);
    }
  }

  async #list(locks, signal) {
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

/** Whatever else went wrong went wrong with the connection. */
const asRefusal = (error) =>
  error instanceof Refusal ? error : new Refusal(0, { title: 'The connection was lost.' });

/** Whether the same request would be refused again: for want of a key or a right, or as one that nobody can fulfill. */
const isFinal = ({ status }) => status >= 400 && status < 500 && status !== 429;

/** Does the work when it is called; called meanwhile, it does it once more. */
function oneAtATime(work) {
  let isWorking = false;
  let isAsked = false;
  return async () => {
    isAsked = true;
    if (isWorking) return;
    isWorking = true;
    try {
      while (isAsked) {
        isAsked = false;
        await work();
        if (isAsked) await new Promise((resolve) => setTimeout(resolve, BETWEEN_LISTS_MS));
      }
    } finally {
      isWorking = false;
    }
  };
}
