// What is known of the held locks. Lists and events are merged, in whatever order they arrive.

/** The most locks that are kept. If others may be missing, the page says so. */
export const MOST_LOCKS = 20_000;
/** How many ended grants are remembered, so that older news of them is recognized; and how many lines of locks that are free. */
const MOST_REMEMBERED = 20_000;
/** If so many locks have ended since a list was cut, it is read again. With each one, that would be all the time. */
const ROOM_FOR_A_LIST = 2_000;

/**
 * The locks below a prefix. Their fencing tokens tell grants apart: the later grant has the larger one. So an event that
 * comes after a later one changes nothing. A list is newer than the events that came before it began, whatever its numbers:
 * of a lock that is held by slots it has the grant that ends first, and after a restore numbers may be smaller. So once a list
 * has ended, no end from before it began makes an event late. A grant that comes later than that is shown until its lease is over.
 */
export class Locks {
  /**
   * An entry is never changed, but replaced. So comparing identities shows whether it is still the same. Those that were
   * heard of in the latest list or since are at the end.
   */
  #held = new Map();
  /** Goes through them once for each list. A search for the first would pass all gaps of those that have left, each time. */
  #fromOldest = this.#held.entries();
  /** The number of the last grant of a key that is known to have ended, and in which list that was told. */
  #ended = new Map();
  /** How many wait for a key that is not held, and in which list that was told. */
  #waiting = new Map();
  #listing = 0;
  /** Whether all places have gone to locks that were heard of since the latest list began. */
  #isFull = false;
  /** Whether a lock was left out. Other locks may have ended since: up to `ROOM_FOR_A_LIST` of them are no reason to look. */
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

  /** Whether a list was cut, and there is room again for what it left out. */
  get hasRoomAgain() {
    return this.#isFull && this.#held.size < MOST_LOCKS - ROOM_FOR_A_LIST;
  }

  /** Begins a list of all held locks. */
  beginListing() {
    this.#listing += 1;
    this.#isFull = false;
    this.#fromOldest = this.#held.entries();
  }

  /** Takes over a page of a list. `askedAt` is when it was asked for. Returns false if no more locks are kept. */
  addPage(page, askedAt) {
    for (const lock of page) {
      const known = this.#held.get(lock.key);
      const ended = this.#ended.get(lock.key);
      const isEnded = lock.fencing_token <= ended?.number;
      // An event that came since the list began is newer.
      if (known?.toldIn === this.#listing || (isEnded && ended.toldIn === this.#listing)) continue;
      if (isEnded) this.#ended.delete(lock.key);
      this.#put(lock, askedAt + lock.expires_in_ms, known);
    }
    return !this.#isFull;
  }

  /** Forgets the locks that were neither in the list nor in an event since it began, and the ends from before it began. */
  endListing() {
    for (const [key, lock] of this.#held) {
      if (lock.seenIn < this.#listing) this.#held.delete(key);
    }
    this.isCut = this.#isFull;
    for (const remembered of [this.#ended, this.#waiting]) {
      for (const [key, { toldIn }] of remembered) {
        if (toldIn < this.#listing) remembered.delete(key);
      }
    }
  }

  /** Takes over what has happened to a lock. */
  apply(event, now) {
    const known = this.#held.get(event.key);
    const number = event.fencing_token;
    // It has come late. `waiting` has no number, and is never late.
    if (number <= this.#ended.get(event.key)?.number || number < known?.fencingToken) return;
    const isSame = known?.fencingToken === number;
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
        this.#end(event.key, number);
        break;
      case 'expired':
      case 'broken':
        this.#end(event.key, number);
        break;
      case 'waiting':
        if (known) this.#held.set(event.key, { ...known, waiters: event.waiters });
        else this.#remember(this.#waiting, event.key, event.waiters);
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
    if (!known && this.#held.size >= MOST_LOCKS && !this.#makesRoom()) return;
    this.#held.delete(lock.key);
    this.#held.set(lock.key, {
      key: lock.key,
      owner: lock.owner ?? '',
      fencingToken: lock.fencing_token,
      waiters: lock.waiters ?? known?.waiters ?? this.#waiting.get(lock.key)?.number ?? 0,
      isReleased: lock.released ?? false,
      endsAt,
      grantedAt,
      seenIn: this.#listing,
      toldIn,
    });
    this.#waiting.delete(lock.key);
  }

  /** Gives up the oldest lock that was not heard of since the list began. If the list has it, its turn comes. */
  #makesRoom() {
    this.isCut = true;
    if (this.#isFull) return false;
    const [oldest, { seenIn, waiters }] = this.#fromOldest.next().value;
    this.#isFull = seenIn === this.#listing;
    if (!this.#isFull && waiters) this.#remember(this.#waiting, oldest, waiters);
    return !this.#isFull && this.#held.delete(oldest);
  }

  #end(key, number) {
    this.#remember(this.#ended, key, number);
    // Those who wait for it go on waiting, and no event tells of them until their number changes.
    const waiters = this.#held.get(key)?.waiters;
    if (waiters) this.#remember(this.#waiting, key, waiters);
    this.#held.delete(key);
  }

  #remember(map, key, number) {
    // It is added again at the end: the map keeps the order in which keys came.
    map.delete(key);
    map.set(key, { number, toldIn: this.#listing });
    if (map.size > MOST_REMEMBERED) map.delete(map.keys().next().value);
  }
}
