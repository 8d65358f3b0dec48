/**
 * A Fencepost client for back ends: `fetch` is enough (Node 20, Deno, Bun, workers). Copy it into your project. A click
 * on "pay": `await fencepost.acquire("pay:4711", { ttlMs: 10_000 })`. A second click within the ttl throws `Busy`.
 */
export class Busy extends Error {} // Somebody else holds the lock.
export class Lost extends Error {} // The lease is over: somebody else may hold the lock by now.
export class Unknown extends Error {} // No answer until the deadline: it may have happened, or not.
export class Refused extends Error {} // The gateway does not take such a request.
const errors: Record<number, typeof Busy> = { 423: Busy, 404: Lost, 409: Lost };
type Grant = { fencing_token: number; ttl_ms: number };
type Times = { ttlMs?: number; waitMs?: number }; // `waitMs` is up to a minute.
const now = () => performance.now(); // It stands still while the machine sleeps: then the fencing token protects.

export class Lease {
  readonly end = new AbortController();
  /** Show `fencingToken` to what the lock protects. `endsAt` is by `now`, and never too late. */
  constructor(readonly key: string, readonly token: string, readonly fencingToken: number, public endsAt: number) {}

  check(): void { if (this.end.signal.aborted || now() >= this.endsAt) throw new Lost(this.key); }
}

export class Fencepost {
  constructor(readonly url: string, readonly retryForMs = 10_000, readonly tryForMs = 3_000, readonly apiKey = "") {}

  async acquire(key: string, { ttlMs = 30_000, waitMs = 0 }: Times = {}): Promise<Lease> {
    const token = crypto.randomUUID(), until = now() + waitMs + this.retryForMs;
    const put = () => this.call("PUT", key, token, until, { ttl: ttlMs, wait: waitMs });
    try {
      let [sentAt, grant] = await put(); // If it waited, the lease began later: the same again says when it ends.
      if (now() - sentAt > ttlMs / 3) [sentAt, grant] = await put();
      return new Lease(key, token, grant.fencing_token, sentAt + grant.ttl_ms);
    } catch (error) { // Out of the line; and what was granted without our knowing is freed.
      if (waitMs === 0 && error instanceof Busy) throw error;
      await this.call("DELETE", key, token, now() + this.tryForMs).catch(() => {});
      throw error;
    }
  }

  async renew(lease: Lease, ttlMs = 30_000): Promise<void> {
    const [sentAt, grant] = await this.call("PATCH", lease.key, lease.token, lease.endsAt, { ttl: ttlMs });
    lease.endsAt = Math.max(lease.endsAt, sentAt + grant.ttl_ms);
  }

  async release({ key, token }: Lease) { await this.call("DELETE", key, token, now() + this.retryForMs); }

  /** Renews during the work. When the lease is lost `end.signal` aborts, `check` throws, and so does the end. */
  async hold<T>(key: string, times: Times, work: (lease: Lease) => Promise<T>): Promise<T> {
    const lease = await this.acquire(key, times), ttlMs = times.ttlMs ?? 30_000;
    const lost = (error: unknown) => { if (error instanceof Lost || now() >= lease.endsAt) lease.end.abort(error); };
    const renewing = setInterval(() => void this.renew(lease, ttlMs).catch(lost), ttlMs / 3);
    let failed = true; // Then what the work throws says more than what the release does.
    try {
      const result = await work(lease);
      lease.check();
      failed = false;
      return result;
    } finally {
      clearInterval(renewing);
      await this.release(lease).catch((error) => { if (!failed && !(error instanceof Unknown)) throw error; });
    }
  }

  private async call(method: string, key: string, token: string, until: number, spans: Record<string, number> = {}) {
    const query = new URLSearchParams({ key });
    for (const [name, ms] of Object.entries(spans)) query.set(name, `${Math.round(ms)}ms`);
    for (;;) { // The same request with the same token, until the gateway answers or the time is over.
      const sentAt = now(), timeoutMs = Math.max(100, Math.min(until - sentAt, this.tryForMs + (spans.wait ?? 0)));
      const headers = { "Lease-Token": token, ...(this.apiKey && { Authorization: `Bearer ${this.apiKey}` }) };
      const options = { method, headers, signal: AbortSignal.timeout(Math.ceil(timeoutMs)) };
      const sent = fetch(`${this.url}/lock?${query}`, options);
      const [status, text] = await sent.then(async (answer) => [answer.status, await answer.text()] as const)
        .catch((error) => [599, String(error)] as const); // No answer.
      if (status < 300) return [sentAt, JSON.parse(text || "null") as Grant] as const;
      const why = `${method} ${key}: ${text}`; // What a proxy says is tried again: it has no such type.
      if (status < 500 && /"type":\s*"\/problems\//.test(text)) throw new (errors[status] ?? Refused)(why);
      if (now() >= until) throw new Unknown(why);
      await new Promise((done) => setTimeout(done, 200));
    }
  }
}
