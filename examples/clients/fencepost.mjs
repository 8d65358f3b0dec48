/**
 * A Fencepost client for Node 20 and later. It needs no package: copy this file into your project. For TypeScript,
 * copy `fencepost.d.mts` as well.
 */
import { X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";
import { setTimeout as pause } from "node:timers/promises";

/** `problem` is the gateway's answer, if there was one. `holder` has `owner`, `expires_at` and `expires_in_ms`. */
export class FencepostError extends Error {
  constructor(message, problem = {}, retryAfterMs = undefined) {
    super(message);
    const { status, type, detail, holder } = problem;
    Object.assign(this, { name: new.target.name, problem, retryAfterMs, status, type, detail, holder });
  }
}
/** Someone else holds the lock, or is next in the wait queue. */
export class Busy extends FencepostError {}
/** The lease is over. Someone else may hold the lock now. */
export class Lost extends FencepostError {}
/** A parameter, the address, the certificate, the API key or its rights are wrong. */
export class Refused extends FencepostError {}
/** No gateway can do it now. Certainly nothing happened. */
export class Unavailable extends FencepostError {}
/** No answer in time. It may have happened, or not. */
export class Unknown extends FencepostError {}

const LONGEST_WAIT_MS = 5_000; // Of one request. A dead gateway is noticed before the ticket in the wait queue expires.
const ADDRESS = /^https?:\/\/([^/?#:@[\]]+|\[[^/\]]*\])(:\d{1,5})?(\/[^?#]*)?$/;
const NOTHING_HAPPENED = ["/problems/store-unavailable", "/problems/not-replicated", "/problems/shutting-down"];
function kindOf(status, type) {
  if (!type) return status > 0 ? Unknown : Unavailable; // What a proxy answers has no such type.
  if (status === 423) return Busy;
  if ((status === 404 || status === 409) && type !== "/problems/not-found") return Lost;
  if (status === 429 || NOTHING_HAPPENED.includes(type)) return Unavailable;
  return status >= 500 ? Unknown : Refused;
}
function isDone(method, status, body) { // A proxy may answer 200 with anything.
  if (method === "DELETE") return status === 204;
  const isPositive = (number) => Number.isInteger(number) && number > 0;
  return (status === 200 || status === 201) && isPositive(body?.fencing_token) && isPositive(body.ttl_ms);
}
function read(what, file, use) { // What is wrong with a file of settings is told with its name.
  try {
    const used = use(readFileSync(file));
    if (used.length) return used;
  } catch (error) { throw new Refused(`the ${what} file ${file}: ${error.message}`); }
  throw new Refused(`the ${what} file ${file} is empty`);
}
const now = () => performance.now(); // It stands still while the machine sleeps: then the fencing token protects.

/** Show `fencingToken` to what the lock protects. `endsAt` is by `performance.now()`, and never too late. */
export class Lease {
  /** `signal` aborts when the lease is lost, and when the `signal` that was given to `hold` aborts. */
  constructor(key, token, fencingToken, endsAt, canceled) {
    const end = new AbortController(), signal = canceled ? AbortSignal.any([end.signal, canceled]) : end.signal;
    Object.assign(this, { key, token, fencingToken, endsAt, signal, end });
  }
  /** Throws `Lost` if someone else may hold the lock. */
  check() {
    this.signal.throwIfAborted();
    if (now() >= this.endsAt) throw new Lost(`${this.key}: the lease is over`);
  }
}

/**
 * `urls` is one gateway, or several that share a store: a list, or a text with commas. Settings that you leave out come
 * from FENCEPOST_URL, FENCEPOST_API_KEY or FENCEPOST_API_KEY_FILE, and SSL_CERT_FILE.
 */
export class Fencepost {
  constructor(urls = process.env.FENCEPOST_URL ?? "http://127.0.0.1:8080", options = {}) {
    const { FENCEPOST_API_KEY: key, FENCEPOST_API_KEY_FILE: keyFile, SSL_CERT_FILE } = process.env;
    const { retryForMs = 10_000, tryForMs = 3_000, apiKey, caFile = SSL_CERT_FILE } = options;
    this.urls = (typeof urls === "string" ? urls.split(",") : [...urls]).map((url) => url.trim().replace(/\/+$/, ""));
    if (!this.urls.every((url) => ADDRESS.test(url))) { // It may hold a password, which nobody is told.
      throw new Refused("FENCEPOST_URL, or what you give, is not http[s]://HOST:PORT, without a user and a password");
    }
    const shown = apiKey || key || (keyFile && read("API key", keyFile, (text) => String(text).trim()));
    if (!/^[!-~]*$/.test(shown ?? "")) throw new Refused("the API key has characters that no key has");
    this.headers = shown ? { Authorization: `Bearer ${shown}` } : {};
    const isSecure = this.urls.some((url) => url.startsWith("https:"));
    const ca = isSecure && caFile ? read("CA", caFile, (text) => new X509Certificate(text) && text) : undefined;
    Object.assign(this, { retryForMs, tryForMs, ca });
  }

  /** Throws `Busy` if the lock is not free within `waitMs`, and `Unavailable` at once if all gateways are away. */
  async acquire(key, { ttlMs = 30_000, waitMs = 0, owner = "", signal } = {}) {
    const token = crypto.randomUUID(), query = { ttl: `${Math.round(ttlMs)}ms`, ...(owner && { owner }) };
    const put = (forMs, more) => this.call("PUT", key, token, now() + forMs, query, { signal, ...more });
    try {
      let [sentAt, grant] = await put(waitMs + this.retryForMs, { waitUntil: waitMs && now() + waitMs, isNew: true });
      // If it waited, the lease began later. The same request says when it ends.
      if (now() - sentAt > ttlMs / 3) [sentAt, grant] = await put(this.tryForMs);
      return new Lease(key, token, grant.fencing_token, sentAt + grant.ttl_ms, signal);
    } catch (error) { // It leaves the wait queue, and releases a grant that it was not told of.
      const harmless = waitMs ? [Lost, Refused, Unavailable] : [Lost, Refused, Unavailable, Busy];
      if (!harmless.some((kind) => error instanceof kind)) {
        await this.call("DELETE", key, token, now() + this.tryForMs).catch(() => {});
      }
      throw error;
    }
  }

  async renew(lease, ttlMs = 30_000) {
    const query = { ttl: `${Math.round(ttlMs)}ms` };
    const [sentAt, grant] = await this.call("PATCH", lease.key, lease.token, lease.endsAt, query);
    lease.endsAt = Math.max(lease.endsAt, sentAt + grant.ttl_ms);
  }

  async release({ key, token, endsAt, end }) { // If the lease is over, the lock is free by itself: one try is enough.
    const isOver = end?.signal.aborted || now() >= endsAt;
    await this.call("DELETE", key, token, now() + (isOver ? this.tryForMs : this.retryForMs));
  }

  /** Renews during the work. If the lease is lost, `signal` aborts, `check` throws `Lost`, and so does the end. */
  async hold(key, options, work) {
    const lease = await this.acquire(key, options), { ttlMs = 30_000 } = options;
    const done = new AbortController();
    const keep = async () => {
      while (!lease.end.signal.aborted) {
        await pause(Math.max(0, Math.min(ttlMs / 3, lease.endsAt - now())), undefined, { signal: done.signal });
        let why;
        if (now() < lease.endsAt) await this.renew(lease, ttlMs).catch((error) => { why = error; });
        if (!(why instanceof Lost) && now() < lease.endsAt) continue;
        lease.end.abort(new Lost(`${key}: the lease is over`, why?.problem));
      }
    };
    keep().catch(() => {}); // It ends so when the work does.
    let hasFailed = true; // Then what the work throws says more than what the release does.
    try {
      const result = await work(lease);
      lease.check();
      hasFailed = false;
      return result;
    } finally {
      done.abort();
      await this.release(lease).catch((error) => { if (!hasFailed && !(error instanceof Unknown)) throw error; });
    }
  }

  /** The same request with the same token until it is answered. A gateway that fails is asked last from then on. */
  async call(method, key, token, until, query = {}, { waitUntil = 0, signal, isNew = false } = {}) {
    let failed = 0, isDoubtful = !isNew, isReached = !isNew, isWrong = true;
    const doubtful = new Set();
    // One gateway that hangs must not use up a lease that another one can renew.
    const tryForMs = method === "PATCH" ? Math.min(this.tryForMs, (until - now()) / 2) : this.tryForMs;
    for (;;) {
      const url = this.urls[0], sentAt = now(), waitMs = Math.min(LONGEST_WAIT_MS, Math.max(0, waitUntil - sentAt));
      const asked = new URLSearchParams({ key, ...query, ...(waitUntil && { wait: `${Math.round(waitMs)}ms` }) });
      const timeoutMs = Math.max(100, Math.min(until - sentAt, tryForMs + waitMs));
      let { status, text, after } = await this.send(method, `${url}/lock?${asked}`, token, timeoutMs, signal);
      let body;
      try { body = JSON.parse(text || "{}"); } catch { /* A proxy's answer. */ }
      if (isDone(method, status, body)) return [sentAt, body];
      const problem = String(body?.type).startsWith("/problems/") ? body : {};
      if (status === 400 && !problem.type && url.startsWith("http:") && /tls|https/i.test(text)) status = -1;
      const kind = kindOf(status, problem.type);
      const message = `${method} ${key} at ${url}: ${problem.detail ?? (text || status)}`;
      if (kind === Refused && doubtful.size && method === "PUT") { // Those may have granted it.
        const others = Object.assign(Object.create(this), { urls: [...doubtful] });
        await others.call("DELETE", key, token, now() + this.tryForMs).catch(() => {});
      }
      if (kind === Lost || kind === Refused || (kind === Busy && now() > waitUntil - 100)) {
        throw new kind(message, problem, after);
      }
      isDoubtful ||= kind === Unknown;
      isReached ||= status > 0;
      isWrong &&= status < 0;
      if (kind === Busy) {
        await pause("position" in problem ? 0 : 200, undefined, { signal });
        continue;
      }
      failed += 1;
      if (kind === Unknown) doubtful.add(url);
      if (this.urls[0] === url) this.urls = [...this.urls.slice(1), url];
      const isRound = failed % this.urls.length === 0;
      if (now() >= until || (isRound && (isWrong || !isReached))) {
        throw new (isWrong ? Refused : isDoubtful ? Unknown : Unavailable)(message, problem, after);
      }
      if (isRound) await pause(Math.max(0, Math.min(after ?? 200, until - now())), undefined, { signal });
    }
  }

  /** The status, the text, and `Retry-After`. 0: nothing was sent. -1: wrong settings. 1: no answer. */
  send(method, url, token, timeoutMs, signal) {
    return new Promise((resolve, reject) => {
      const isSecure = url.startsWith("https:"), headers = { ...this.headers, "Lease-Token": token };
      const request = (isSecure ? https : http).request(url, { method, headers, ca: this.ca, signal });
      const timer = setTimeout(() => request.destroy(new Error("no answer in time")), timeoutMs);
      let isConnected = false;
      const fail = (error) => {
        clearTimeout(timer);
        if (signal?.aborted) reject(signal.reason);
        else {
          const isWrong = request.socket?.authorizationError || /^(EPROTO$|ERR_SSL_)/.test(error.code);
          resolve({ status: isConnected ? 1 : isWrong ? -1 : 0, text: error.message || error.code });
        }
      };
      request.on("error", fail).on("socket", (socket) => {
        isConnected = request.reusedSocket;
        if (!isConnected) socket.once(isSecure ? "secureConnect" : "connect", () => { isConnected = true; });
      }).on("response", async (response) => {
        try {
          let text = "";
          for await (const part of response.setEncoding("utf8")) text += part;
          clearTimeout(timer);
          const after = response.headers["retry-after"];
          resolve({ status: response.statusCode, text, after: /^\d+$/.test(after) ? after * 1000 : undefined });
        } catch (error) { fail(error); }
      }).end();
    });
  }
}
