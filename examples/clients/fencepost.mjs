// A Fencepost client for Node 20 and later. It needs no package: copy this file into your project. For TypeScript, copy
// `fencepost.d.mts` as well.
import { X509Certificate } from "node:crypto";
import { setMaxListeners } from "node:events";
import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";
import timers from "node:timers/promises";

/** `problem` is the gateway's answer, if there was one. `holder` has `owner`, `expires_at` and `expires_in_ms`. */
export class FencepostError extends Error {
  constructor(message, problem = {}, retryAfterMs = undefined) {
    super(message);
    const { status, type, detail, holder } = problem;
    Object.assign(this, { name: new.target.name, problem, retryAfterMs, status, type, detail, holder });
  }
}
export class Busy extends FencepostError {} // Someone else holds the lock, or is next in the wait queue.
export class Lost extends FencepostError {} // The lease is over. Someone else may hold the lock now.
export class Refused extends FencepostError {} // A parameter, address, certificate, API key or right is wrong.
export class Unavailable extends FencepostError {} // No gateway can do it now. Certainly nothing happened.
export class Unknown extends FencepostError {} // No answer in time. It may have happened, or not.
export class Mismatch extends Refused {} // The record belongs to a request with another fingerprint.
export class Abandoned extends FencepostError {} // Someone may have done the work. You said `takeover: false`.
/** Another worker has taken over, with this `fencingToken`. Your result is not stored. */
export class Superseded extends Lost { get fencingToken() { return this.problem.fencing_token ?? 0; } }
export class NothingDone extends Error {} // The work of `once` throws it if it certainly changed nothing.

const LONGEST_WAIT_MS = 5_000; // Of one request. A dead gateway is noticed before the ticket in the wait queue expires.
const LONGEST_WAIT_OF_SEVERAL_MS = 20_000; // Between two requests it has none of these locks, and others go first.
const ADDRESS = /^https?:\/\/([^/?#:@[\]]+|\[[^/\]]*\])(:\d{1,5})?(\/[^?#]*)?$/;
const NOTHING_HAPPENED = ["store-unavailable", "not-replicated", "shutting-down", "store-nearly-full"];
const KINDS = { "once-abandoned": Abandoned, superseded: Superseded, "fingerprint-mismatch": Mismatch };
function kindOf(status, type) {
  if (!type) return status > 0 ? Unknown : Unavailable; // What a proxy answers has no such type.
  const name = type.slice("/problems/".length);
  if (Object.hasOwn(KINDS, name)) return KINDS[name];
  if (status === 423) return Busy;
  if ((status === 404 || status === 409) && type !== "/problems/not-found") return Lost;
  if (status === 408 || status === 429 || NOTHING_HAPPENED.includes(name)) return Unavailable;
  return status >= 500 && status !== 501 ? Unknown : Refused;
}
/** Whether that is the whole answer to this request. A proxy may answer 204, 200 with anything, or another answer. */
function isDone(method, path, key, token, status, body, headers) {
  if (method === "DELETE") return status === 204 && "x-request-id" in headers; // Each answer of a gateway has that.
  const isBegin = method === "PUT" && path === "/once"; // There, 200 is somebody's result.
  const isPositive = (number) => Number.isInteger(number) && number > 0;
  const locks = Array.isArray(body?.locks) ? body.locks : [body]; // Of several, each has its number.
  const isTaken = (key) => locks.some((lock) => lock?.key === key && isPositive(lock.fencing_token));
  const isOurs = each(key).every(isTaken) && (method === "POST" || body.token === token);
  const isWhole = isOurs && isPositive(method === "POST" ? body.kept_ms : body.ttl_ms);
  return isWhole && (isBegin ? status === 201 && Number.isInteger(body.earlier) : status === 200 || status === 201);
}
function replayed(token, status, body, headers) {
  const fencingToken = Number(headers["fencing-token"]), isWhole = headers["once-bytes"] === String(body.length);
  const isOurs = status === 200 && headers.once === "replayed" && headers["lease-token"] === token;
  if (!isOurs || !isWhole || !(fencingToken > 0)) return undefined;
  const told = headers["once-status"], contentType = headers["once-content-type"];
  return { body, status: told === undefined ? undefined : Number(told), contentType, wasReplayed: true, fencingToken };
}
function resultOf(made, mostBytes) {
  if (typeof made === "string") made = { body: made, contentType: "text/plain; charset=utf-8" };
  const told = ArrayBuffer.isView(made) ? made : made?.body, isView = ArrayBuffer.isView(told);
  if (typeof told !== "string" && !isView) throw new TypeError("this is no result: return a string, bytes or { body }");
  const body = isView ? Buffer.from(told.buffer, told.byteOffset, told.byteLength) : Buffer.from(told);
  if (body.length > mostBytes) throw new Refused(`${body.length} bytes are longer than ${mostBytes}`);
  const { status, contentType } = told === made ? {} : made;
  // The work is done, so its result must not fail for what no request can carry: that counts as none.
  const kind = (typeof contentType === "string" ? contentType.trim() : "").match(/^[ -~]{1,127}$/)?.[0];
  const number = /^\d{1,3}$/.test(String(status)) ? Number(status) : undefined;
  return { body, status: number ?? (body.length ? undefined : 0), contentType: kind }; // By a status, empty is meant.
}
function read(what, file, use) { // What is wrong with a file of settings is told with its name.
  try {
    const used = use(readFileSync(file));
    if (used.length) return used;
  } catch (error) { throw new Refused(`the ${what} file ${file}: ${error.message}`); }
  throw new Refused(`the ${what} file ${file} is empty`);
}
/** A copy, since the caller may change its list. A missing key, or half of an emoji, would be sent as another key. */
function each(key) {
  const keys = [key].flat(), isNumber = (one) => /number|bigint/.test(typeof one) && !Number.isNaN(one);
  const isKey = (one) => (typeof one === "string" ? one.isWellFormed() : isNumber(one));
  if (!keys.length || !keys.every(isKey)) throw new Refused(`a key is a string, or a list of them: not ${key}`);
  return keys.map(String);
}
const own = (key) => (Array.isArray(key) ? Object.freeze(each(key)) : each(key)[0]);
function check(times) { // No comparison with NaN is true, so with it no wait would end.
  const wrong = Object.keys(times).find((name) => typeof times[name] !== "number" || Number.isNaN(times[name]));
  if (wrong) throw new Refused(`${wrong} is a number of milliseconds: not ${typeof times[wrong]} ${times[wrong]}`);
}
const inTimer = (ms) => Math.min(ms, 2 ** 31 - 1); // Node makes 1 ms of more.
const pause = (ms, signal) => timers.setTimeout(inTimer(ms), null, { signal }).catch(() => signal.throwIfAborted());
const now = () => performance.now(); // It stands still while the machine sleeps: then the fencing token protects.
const over = ({ key, end }, why) => end?.abort(new Lost(`${key}: the lease is over`, why?.problem));

/** Show `fencingToken` to what the lock protects. `endsAt` is by `performance.now()`, and never too late. */
export class Lease {
  /** In `hold` and `once`, `signal` aborts when the lease is over, and when the `signal` that was given aborts. */
  constructor(key, token, ttlMs, grant, sentAt, canceled) {
    const end = new AbortController(), signal = canceled ? AbortSignal.any([end.signal, canceled]) : end.signal;
    setMaxListeners(0, end.signal); // Each renewal of each key is one.
    const { ttl_ms: ms, fencing_token: fencingToken, slot, locks = [grant] } = grant; // Of several, each has a number.
    const fencingTokens = Object.fromEntries(locks.map((lock) => [lock.key, lock.fencing_token]));
    Object.assign(this, { key, token, ttlMs, fencingToken, fencingTokens, slot, signal, end, endsAt: sentAt + ms });
  }
  /** Throws `Lost` if someone else may hold the lock. */
  check() {
    this.signal.throwIfAborted();
    if (now() >= this.endsAt) throw new Lost(`${this.key}: the lease is over`);
  }
}
Lease.prototype.path = "/lock";
/** Of a worker. If `earlier` is not 0, so many workers before may have done the work, or half of it: look first. */
export class Place extends Lease {}
Place.prototype.path = "/once";

/**
 * `urls` is one gateway, or several that share a store: a list, or a text with commas. Settings that you leave out come
 * from FENCEPOST_URL, FENCEPOST_API_KEY or FENCEPOST_API_KEY_FILE, and SSL_CERT_FILE.
 */
export class Fencepost {
  constructor(urls = process.env.FENCEPOST_URL ?? "http://127.0.0.1:8080", options = {}) {
    const { FENCEPOST_API_KEY: key, FENCEPOST_API_KEY_FILE: keyFile, SSL_CERT_FILE } = process.env;
    const { retryForMs = 10_000, tryForMs = 3_000, storeForMs = 0, apiKey, caFile = SSL_CERT_FILE } = options;
    this.urls = (typeof urls === "string" ? urls.split(",") : [...urls]).map((url) => url.trim().replace(/\/+$/, ""));
    if (!this.urls.length || !this.urls.every((url) => ADDRESS.test(url))) { // Nobody is told its password.
      throw new Refused("FENCEPOST_URL, or what you give, is not http[s]://HOST:PORT, without a user and a password");
    }
    const shown = apiKey || key || (keyFile && read("API key", keyFile, (text) => String(text).trim()));
    if (!/^[!-~]*$/.test(shown ?? "")) throw new Refused("the API key has characters that no key has");
    this.headers = shown ? { Authorization: `Bearer ${shown}` } : {};
    const isSecure = this.urls.some((url) => url.startsWith("https:"));
    const ca = isSecure && caFile ? read("CA", caFile, (text) => new X509Certificate(text) && text) : undefined;
    check({ retryForMs, tryForMs, storeForMs });
    Object.assign(this, { retryForMs, tryForMs, storeForMs, ca });
  }

  /**
   * Throws `Busy` if the lock is not free within `waitMs`, and `Unavailable` at once if all gateways are away. With
   * `slots`, a number or "any", so many may hold the lock at once: then the lease has a `slot`. Of a list of keys it
   * takes all locks, or none.
   */
  async acquire(keys, { ttlMs = 30_000, waitMs = 0, owner = "", slots = 1, signal } = {}) {
    const token = crypto.randomUUID(), key = own(keys), query = { ...(owner && { owner }) };
    if (slots !== 1) query.slots = slots;
    const [sentAt, grant] = await this.take(key, token, ttlMs, waitMs, query, { signal });
    return new Lease(key, token, ttlMs, grant, sentAt);
  }

  async take(key, token, ttlMs, waitMs, query, more) {
    check({ ttlMs, waitMs });
    const waitUntil = waitMs && now() + waitMs;
    query.ttl = `${Math.round(ttlMs)}ms`;
    const put = (forMs, isNew, until = isNew || !more.path ? waitUntil : 0) =>
      this.call("PUT", key, token, Math.max(now(), until) + forMs, query, { ...more, waitUntil: until, isNew });
    try {
      let said = await put(this.retryForMs, true);
      const isLate = (byMs) => !said[1].wasReplayed && now() >= said[0] + byMs;
      // If it waited, the lease began later. The same request says when it ends, or waits on if it is over.
      if (isLate(ttlMs / 3)) do said = await put(this.tryForMs); while (isLate(said[1].ttl_ms) && now() < waitUntil);
      if (!isLate(said[1].ttl_ms)) return said;
      throw new Abandoned("", { yours: true }); // This answer, too, came when the lease was over.
    } catch (error) { // It leaves the wait queue, and releases a grant that it was not told of.
      const harmless = [Lost, Refused, Unavailable, Abandoned, ...(waitMs || Array.isArray(key) ? [] : [Busy])];
      const isOwn = error instanceof Abandoned && error.problem.yours; // And the work has not begun.
      const isOpen = isOwn || more.signal?.aborted || !harmless.some((kind) => error instanceof kind); // By Lost, too.
      if (isOpen) await this.leave(more.path, key, token).catch(() => {});
      throw isOwn ? new Unavailable(`${key}: the lease was over before the work began`) : error;
    }
  }

  async leave(path, key, token, isClean = true) {
    await this.free(key, token, now() + this.tryForMs, path === "/once" && isClean ? { clean: "true" } : {}, { path });
  }

  async free(key, token, until, query, more) {
    const freed = await Promise.allSettled(each(key).map((k) => this.call("DELETE", k, token, until, query, more)));
    for (const { reason } of freed) if (reason) throw reason; // It has left none of the others behind.
  }

  async renew(lease, ttlMs = lease.ttlMs ?? 30_000) { // Else for as long as it was taken for.
    check({ ttlMs });
    const query = { ttl: `${Math.round(ttlMs)}ms` }, { key, token, endsAt, path } = lease, signal = lease.end?.signal;
    const failing = (error) => {
      if (!(error instanceof Lost)) return error;
      if (error.status < 500) over(lease, error); // Else another renewal may have come in time.
      throw error; // No other failure hides it.
    };
    const ask = (one) => this.call("PATCH", one, token, endsAt, query, { path, signal }).catch(failing);
    const renewed = await Promise.all(each(key).map(ask));
    for (const failed of renewed) if (failed instanceof Error) throw signal?.aborted ? signal.reason : failed;
    lease.endsAt = Math.max(lease.endsAt, Math.min(...renewed.map(([sentAt, grant]) => sentAt + grant.ttl_ms)));
  }

  async release({ key, token, endsAt, end }) { // If the lease is over, the lock is free by itself: one try is enough.
    const isOver = end?.signal.aborted || now() >= endsAt;
    over({ key, end }); // Before another can have the lock.
    await this.free(key, token, now() + (isOver ? this.tryForMs : this.retryForMs));
  }

  /** Renews during the work. If the lease is lost, `signal` aborts, `check` throws `Lost`, and so does the end. */
  async hold(key, options, work) {
    const { ttlMs = 30_000, signal } = options ?? {}, lease = await this.acquire(key, options);
    if (signal) lease.signal = AbortSignal.any([lease.signal, signal]);
    this.renews(lease, ttlMs);
    let hasFailed = true; // Then what the work throws says more than what the release does.
    try {
      const result = await work(lease);
      lease.check();
      hasFailed = false;
      return result;
    } finally {
      await this.release(lease).catch((error) => { if (!hasFailed && !(error instanceof Unknown)) throw error; });
    }
  }

  /** Renews until the lease is over. */
  async renews(lease, ttlMs) {
    const { signal } = lease.end, ignore = () => {};
    while (!signal.aborted) {
      await pause(Math.max(0, Math.min(ttlMs / 3, lease.endsAt - now())), signal).catch(ignore); // The work may end.
      if (!signal.aborted && now() < lease.endsAt) await this.renew(lease, ttlMs).catch(ignore);
      if (now() >= lease.endsAt) over(lease);
    }
  }

  /**
   * Returns the stored result if there is one. Otherwise it works, and stores what `work` returns. Throws `Busy` if
   * another is still at work after `waitMs`. If `work` throws, the place is given up, and the next worker is told that
   * something may have been done, except after `NothingDone`.
   */
  async once(key, options, work) {
    const { ttlMs = 30_000 } = options, place = await this.begin(key, crypto.randomUUID(), options);
    if (place.wasReplayed) return place;
    this.renews(place, ttlMs);
    let result;
    try {
      result = resultOf(await work(place), place.maxResultBytes);
      return await this.store(place, result, ttlMs);
    } catch (error) {
      over(place);
      const isOpen = !result || error instanceof Refused; // Such as a result that is too large.
      // It is that of one place: work around it that passes it on may have done something.
      const isClean = error instanceof NothingDone && !error.isTold && (error.isTold = true);
      if (isOpen) await this.leave("/once", key, place.token, isClean).catch(() => {});
      throw error;
    } finally { over(place); }
  }

  async begin(keys, token, options) {
    const { ttlMs = 30_000, waitMs = 0, keepMs = 86_400_000, owner, fingerprint, takeover = true, signal } = options;
    check({ keepMs });
    if (typeof takeover !== "boolean") throw new Refused(`takeover is ${takeover}: say true or false`);
    const query = { keep: `${Math.round(keepMs)}ms`, ...(owner && { owner }), ...(!takeover && { takeover }) };
    const headers = fingerprint ? { "Once-Fingerprint": fingerprint } : {}, key = own(keys);
    const [sentAt, said] = await this.take(key, token, ttlMs, waitMs, query, { path: "/once", headers, signal });
    if (said.wasReplayed) return said;
    const place = new Place(key, token, ttlMs, said, sentAt, signal);
    return Object.assign(place, { earlier: said.earlier, maxResultBytes: said.max_result_bytes, query, headers });
  }

  /** The same post until it is answered. It needs no lease, only that nobody has taken over. */
  async store({ key, token, path, query: begin, headers: fingerprint }, result, ttlMs) {
    const until = now() + (this.storeForMs || Math.max(ttlMs, this.retryForMs));
    const status = result.status === undefined ? {} : { status: String(result.status) };
    const headers = result.contentType ? { "Content-Type": result.contentType } : {};
    const post = async () => {
      const [, stored] = await this.call("POST", key, token, until, status, { path, headers, body: result.body });
      return { ...result, wasReplayed: false, fencingToken: stored.fencing_token };
    };
    try { return await post(); } catch (error) { if (error.type !== "/problems/not-begun") throw error; }
    // The record was broken or lost. The work is done: what was said about taking over does not matter now.
    const { takeover, ...query } = begin, put = { path, headers: fingerprint };
    let number;
    try {
      const [, again] = await this.call("PUT", key, token, until, query, put);
      if (!again.wasReplayed) return await post();
      number = again.fencingToken;
    } catch (error) {
      if (!(error instanceof Busy)) throw error;
      number = error.problem.worker?.fencing_token;
    }
    throw new Superseded(`${key}: another worker has taken over`, { fencing_token: number });
  }

  /** The same request with the same token until it is answered. A gateway that fails is asked last from then on. */
  async call(method, key, token, until, query = {}, more = {}) {
    const { waitUntil = 0, signal, isNew = false, path = "/lock", headers: extra = {}, body: sent } = more;
    let failed = 0, isDoubtful = !isNew, isReached = !isNew, isWrong = true;
    let longestMs = each(key).length > 1 ? LONGEST_WAIT_OF_SEVERAL_MS : LONGEST_WAIT_MS;
    const doubtful = new Set();
    // One gateway that hangs must not use up a lease that another one can renew.
    const tryForMs = method === "PATCH" ? Math.min(this.tryForMs, (until - now()) / 2) : this.tryForMs;
    for (;;) {
      const url = this.urls[0], sentAt = now(), waitMs = Math.min(longestMs, Math.max(0, waitUntil - sentAt));
      const asked = new URLSearchParams({ ...query, ...(waitUntil && { wait: `${Math.round(waitMs)}ms` }) });
      for (const one of each(key)) asked.append("key", one);
      const timeoutMs = Math.max(100, Math.min(until - sentAt, tryForMs + waitMs));
      const shown = { ...this.headers, ...extra, "Lease-Token": token };
      const how = { method, headers: shown, ca: this.ca, signal, ...(failed && { agent: false }) }; // A new connection.
      let { status, data, headers } = await this.send(`${url}${path}?${asked}`, how, sent, timeoutMs);
      const result = path === "/once" && method === "PUT" && replayed(token, status, data, headers);
      if (result) return [sentAt, result];
      const text = data.toString(), wait = headers["retry-after"], after = /^\d+$/.test(wait) ? wait * 1000 : undefined;
      let body; try { body = JSON.parse(text || "{}"); } catch { /* A proxy's answer. */ }
      if (isDone(method, path, key, token, status, body, headers)) return [sentAt, body];
      const problem = String(body?.type).startsWith("/problems/") ? body : {};
      if (status === 400 && !problem.type && url.startsWith("http:") && /tls|https/i.test(text)) status = -1;
      const kind = kindOf(status, problem.type);
      const told = /^2../.test(status) ? "" : text.slice(0, 300); // It may be another's grant, with its lease token.
      const message = `${method} ${key} at ${url}: ${problem.detail ?? (told || status)}`;
      const error = new kind(message, problem, after);
      const isBusy = kind === Busy || kind === Abandoned;
      const hasWaited = now() > waitUntil - 100 || problem.yours; // It need not wait for itself.
      const isTooLong = problem.parameter === "wait" && waitMs > 100; // For the `--max-wait` of the gateway.
      const isFinal = isBusy ? hasWaited : error instanceof Lost || (error instanceof Refused && !isTooLong);
      if (isFinal && doubtful.size && method === "PUT") { // Those may have granted it, or a late copy still takes it.
        // After Busy, this one answers, and tells the store that they share.
        const others = isBusy ? this : Object.assign(Object.create(this), { urls: [...doubtful] });
        await others.leave(path, key, token, isNew || problem.yours === true).catch(() => {});
      }
      if (isFinal) throw error;
      isDoubtful ||= kind === Unknown; isReached ||= status > 0; isWrong &&= status < 0;
      if (isTooLong) { longestMs = waitMs / 2; continue; }
      if (isBusy) { await pause("position" in problem ? 0 : 200, signal); continue; }
      failed += 1;
      if (kind === Unknown) doubtful.add(url);
      if (this.urls[0] === url) this.urls = [...this.urls.slice(1), url];
      const isRound = failed % this.urls.length === 0, left = Math.max(0, until - now());
      if (now() >= until || (isRound && (isWrong || !isReached))) {
        const isOver = method === "PATCH" && now() >= until; // Of the lease.
        throw new (isWrong ? Refused : isOver ? Lost : isDoubtful ? Unknown : Unavailable)(message, problem, after);
      }
      if (isRound) await pause(Math.min(after || 200, 200 + left / 4, left), signal);
    }
  }

  /** The status, the body, and the headers. 0: nothing was sent. -1: wrong settings. 1: no answer. */
  send(url, options, body, timeoutMs) {
    return new Promise((resolve, reject) => {
      const isSecure = url.startsWith("https:");
      let request, isConnected = false;
      try { request = (isSecure ? https : http).request(url, options); } catch (error) {
        return resolve({ status: -1, data: Buffer.from(error.message), headers: {} });
      }
      const timer = setTimeout(() => request.destroy(new Error("no answer in time")), inTimer(timeoutMs));
      const fail = (error) => {
        clearTimeout(timer);
        if (options.signal?.aborted) return reject(options.signal.reason);
        const isWrong = request.socket?.authorizationError || /^(EPROTO$|ERR_SSL_)/.test(error.code);
        const data = Buffer.from(error.message || error.code);
        resolve({ status: isConnected ? 1 : isWrong ? -1 : 0, data, headers: {} });
      };
      request.on("error", fail).on("socket", (socket) => {
        isConnected = !socket.destroyed && !(isSecure ? socket.secureConnecting : socket.connecting); // By its agent.
        if (!isConnected) socket.once(isSecure ? "secureConnect" : "connect", () => { isConnected = true; });
      }).on("upgrade", (response, socket) => {
        socket.destroy(); fail(new Error("it answers with 101"));
      }).on("response", async (response) => {
        try {
          const parts = [];
          for await (const part of response) parts.push(part);
          clearTimeout(timer);
          resolve({ status: response.statusCode, data: Buffer.concat(parts), headers: response.headers });
        } catch (error) { fail(error); }
      }).end(body);
    });
  }
}
