/** The types of `fencepost.mjs`, which says what each of these does. */
export type Problem = { type?: string; title?: string; status?: number; detail?: string; holder?: Holder; [more: string]: unknown };
export type Holder = { owner?: string; fencing_token?: number; expires_at?: string; expires_in_ms?: number; [more: string]: unknown };

export class FencepostError extends Error {
  constructor(message: string, problem?: Problem, retryAfterMs?: number);
  readonly problem: Problem;
  readonly status?: number;
  readonly type?: string;
  readonly detail?: string;
  readonly holder?: Holder;
  readonly retryAfterMs?: number;
}
export class Busy extends FencepostError {}
export class Lost extends FencepostError {}
export class Refused extends FencepostError {}
export class Unavailable extends FencepostError {}
export class Unknown extends FencepostError {}
export class Mismatch extends Refused {}
export class Abandoned extends FencepostError {}
export class Superseded extends Lost {
  readonly fencingToken: number;
}
export class NothingDone extends Error {}

/** Of several keys, it is a `Lease<number | undefined>`. */
export interface Lease<Token = number> {
  readonly key: Keys;
  readonly token: string;
  readonly ttlMs: number;
  /** Of one lock. Of several, each has its own in `fencingTokens`, and this is `undefined`. */
  readonly fencingToken: Token;
  readonly fencingTokens: { readonly [key: string]: number };
  readonly slot?: number;
  readonly endsAt: number;
  /** In `hold` and `once`, it aborts when the lease is over. After `acquire`, only when `renew` or `release` ends it. */
  readonly signal: AbortSignal;
  check(): void;
}

export type Keys = string | readonly string[];
export interface Place extends Lease {
  readonly earlier: number;
  readonly maxResultBytes: number;
}
export type Made = string | ArrayBufferView | { body: string | ArrayBufferView; status?: number; contentType?: string };
export type Result = { body: Buffer; status?: number; contentType?: string; wasReplayed: boolean; fencingToken: number };

/**
 * `waitMs` may be as long as you like. `signal` gives up: the lock is released, or the ticket in the wait queue. What
 * `acquire` has granted, it no longer concerns.
 */
export type Options = { ttlMs?: number; waitMs?: number; owner?: string; signal?: AbortSignal };
/** `slots`: how many may hold the lock at once. */
export type LockOptions = Options & { slots?: number | "any" };
/** `keepMs`: how long the result is kept. `takeover: false`: do not do again what someone may have done. */
export type OnceOptions = Options & { keepMs?: number; fingerprint?: string; takeover?: boolean };
export type Settings = { retryForMs?: number; tryForMs?: number; storeForMs?: number; apiKey?: string; caFile?: string };

export class Fencepost {
  constructor(urls?: string | Iterable<string>, settings?: Settings);
  acquire(key: string, options?: LockOptions): Promise<Lease>;
  acquire(key: Keys, options?: LockOptions): Promise<Lease<number | undefined>>;
  /** For `ttlMs` from now on, or for as long as the lease was taken for. */
  renew(lease: Lease<number | undefined>, ttlMs?: number): Promise<void>;
  release(lease: Lease<number | undefined>): Promise<void>;
  hold<T>(key: string, options: LockOptions, work: (lease: Lease) => Promise<T>): Promise<T>;
  hold<T>(key: Keys, options: LockOptions, work: (lease: Lease<number | undefined>) => Promise<T>): Promise<T>;
  once(key: string, options: OnceOptions, work: (place: Place) => Promise<Made>): Promise<Result>;
}
