// What is known of the held locks: merged from lists and events, in whatever order these arrive.

/** The most locks that are kept. Beyond it the page says so. */
export const MOST_LOCKS = 20_000;
/** How many ends of grants are remembered, so that what is older than them is known to be. */
const MOST_ENDS = 20_000;

/**
 * The locks below a prefix. A grant is told from the one before by its number, which only grows: a list that was read
 * before an event, or an event that was overtaken by a later one, changes nothing.
 */
export class Locks {
  /** None is ever changed: whoever shows one sees by its identity whether it is still the same. */
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

  /** A list begins, of all that is held. */
  beginListing() {
    this.#listing += 1;
    this.isCut = false;
  }

  /** Takes a page of a list over; `askedAt` is when it was asked for. False when no more are kept. */
  addPage(page, askedAt) {
    for (const lock of page) {
      const known = this.#held.get(lock.key);
      // An event since the list began knows it better.
      if (known?.toldIn === this.#listing) continue;
      this.#put(lock, askedAt + lock.expires_in_ms, known);
    }
    return !this.isCut;
  }

  /** Forgets what neither the list nor an event since its beginning told of. */
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
        // No renewal shortens a lease, or comes after a release: so whichever of two says otherwise was overtaken.
        if (isSame && (known.isReleased || endsAt < known.endsAt)) break;
        this.#put(isSame ? { owner: known.owner, ...event } : event, endsAt, known, this.#listing);
        break;
      case 'released':
        if (event.ttl_ms > 0) {
          // Nobody works under it any more, and it stays taken for the rest of its `min_hold`.
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

  /** Whether a lease was over at this time that nothing was heard of since. */
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
    // Anew at the end: the map keeps the order in which keys came.
    this.#ended.delete(key);
    this.#ended.set(key, last);
    if (this.#ended.size > MOST_ENDS) this.#ended.delete(this.#ended.keys().next().value);
    if (known?.fencingToken <= number) this.#held.delete(key);
  }
}
