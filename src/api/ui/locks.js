// What is known of the held locks. Lists and events are merged, in whatever order they arrive.

/** The most locks that are kept. Beyond it the page says so. */
export const MOST_LOCKS = 20_000;
/** How many ended grants are remembered, so that older news of them is recognized. */
const MOST_ENDS = 20_000;

/**
 * The locks below a prefix. Their fencing tokens tell grants apart: the later grant has the larger one. So a list that
 * was read before an event changes nothing. Nor does an event that comes after a later one.
 */
export class Locks {
  /** An entry is never changed, but replaced. So comparing identities shows whether it is still the same. */
  #held = new Map();
  /** The number of the last grant of a key that is known to have ended. */
  #ended = new Map();
  #listing = 0;
  /** Whether more locks are held than are kept here. */
  isCut = false;

  get size() {
    return this.#held.size;
  }

  get(key) {
    return this.#held.get(key);
  }

  values() {
    return this.#held.values();
  }

  /** Begins a list of all held locks. */
  beginListing() {
    this.#listing += 1;
    this.isCut = false;
  }

  /** Takes over a page of a list. `askedAt` is when it was asked for. Returns false if no more locks are kept. */
  addPage(page, askedAt) {
    for (const lock of page) {
      const known = this.#held.get(lock.key);
      // An event that came since the list began is newer.
      if (known?.toldIn === this.#listing) continue;
      this.#put(lock, askedAt + lock.expires_in_ms, known);
    }
    return !this.isCut;
  }

  /** Forgets the locks that were neither in the list nor in an event since it began. */
  endListing() {
    for (const [key, lock] of this.#held) {
      if (lock.seenIn < this.#listing) this.#held.delete(key);
    }
  }

  /** Takes over what has happened to a lock. */
  apply(event, now) {
    const known = this.#held.get(event.key);
    const isSame = known?.fencingToken === event.fencing_token;
    const endsAt = now + (event.ttl_ms ?? 0);
    switch (event.event) {
      case 'granted':
        this.#put(event, isSame ? Math.max(endsAt, known.endsAt) : endsAt, known, this.#listing, now);
        break;
      case 'renewed':
        // No renewal shortens a lease, or comes after a release. An event that says otherwise has come late.
        if (isSame && (known.isReleased || endsAt < known.endsAt)) break;
        this.#put(isSame ? { owner: known.owner, ...event } : event, endsAt, known, this.#listing);
        break;
      case 'released':
        if (event.ttl_ms > 0) {
          // It has no holder any more, and stays taken for the rest of its `min_hold`.
          this.#put({ owner: isSame ? known.owner : '', ...event, released: true }, endsAt, known, this.#listing);
          break;
        }
        this.#end(event.key, event.fencing_token, known);
        break;
      case 'expired':
      case 'broken':
        this.#end(event.key, event.fencing_token, known);
        break;
      case 'waiting':
        if (known) this.#held.set(event.key, { ...known, waiters: event.waiters });
        break;
    }
  }

  /** Whether the lease was over at this time, and nothing was heard of it since. */
  hasOverdue(time) {
    for (const lock of this.#held.values()) {
      if (lock.endsAt < time) return true;
    }
    return false;
  }

  #put(lock, endsAt, known, toldIn = known?.toldIn, grantedAt = known?.grantedAt) {
    const number = lock.fencing_token;
    if (number <= (this.#ended.get(lock.key) ?? 0) || number < known?.fencingToken) return;
    if (!known && this.#held.size >= MOST_LOCKS) {
      this.isCut = true;
      return;
    }
    this.#held.set(lock.key, {
      key: lock.key,
      owner: lock.owner ?? '',
      fencingToken: number,
      waiters: lock.waiters ?? known?.waiters ?? 0,
      isReleased: lock.released ?? false,
      endsAt,
      grantedAt,
      seenIn: this.#listing,
      toldIn,
    });
  }

  #end(key, number, known) {
    const last = Math.max(number, this.#ended.get(key) ?? 0);
    // It is added again at the end: the map keeps the order in which keys came.
    this.#ended.delete(key);
    this.#ended.set(key, last);
    if (this.#ended.size > MOST_ENDS) this.#ended.delete(this.#ended.keys().next().value);
    if (known?.fencingToken <= number) this.#held.delete(key);
  }
}
