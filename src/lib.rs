//! Fencepost, an HTTP gateway to distributed locks: the library behind the program, and what its tests use.
//!
//! # Code map
//!
//! Dependencies point one way: `main → api → service → store → lock`. A test reads the imports and holds this page
//! against them.
//!
//! | place | holds | may use |
//! |---|---|---|
//! | `main.rs` | arguments, log, bind, signals, exit code; the only `anyhow` | all |
//! | [`config`] | settings: flags, each also an environment variable | `api`, `server`, `store`, `run`, `lock` |
//! | `config/store` | those that say where locks live, which all commands share that look at a store | |
//! | `config/run` | those of `fencepost run` | |
//! | [`run`] | `fencepost run`: a command that runs while a lock is held. It knows of a gateway what its contract says | `lock`, `clock` |
//! | `run/gateway`, `run/turn`, `run/progress` | the requests, and what each answer means; waiting for the lock; what a person sees meanwhile | |
//! | `run/supervisor`, `run/lease`, `run/renewals` | the one loop while the command runs; when what must have ended; renewing | |
//! | `run/processes`, `run/signals`, `run/terminal` | all that the command started; what is passed on to it; who may read the terminal | |
//! | [`api`] | every route, and what all requests pass through | `service`, `store`, `lock`, `server` |
//! | `api/locks`, `api/health` | the handlers: parse → service → answer | |
//! | `api/hold`, `api/events` | a lock that is held by the request itself, and what it is told meanwhile | |
//! | `api/extract`, `api/raw` | what a caller says, parsed once and strictly | |
//! | `api/answers`, `api/problem` | what a caller is told; `problem` is the only map to status codes | |
//! | `api/observe`, `api/admission`, `api/delivery` | request id and log line; what is refused at the door; whether an answer reached the socket | |
//! | `api/openapi` | what the handlers' attributes cannot say of the document | |
//! | [`server`] | the accept loop: deadlines, caps, drain, patience with peers. It knows no lock | |
//! | [`service`] | what a lock *does*, once, for every store: doubt, retries, taking back | `store`, `lock`, `clock` |
//! | `service/wait`, `service/line`, `service/heart` | a request that waits; what wakes those who wait; the heartbeat by which nothing is missed | |
//! | `service/hold` | a lock that a connection holds: what renews it, and what ends it | |
//! | [`store`] | the trait of all stores, and the two ways in which a store can fail | `lock`, `clock` |
//! | [`store::redis`], `redis/*.lua` | Redis: each operation one script, one round trip | |
//! | `store/redis/servers`, `store/redis/cluster`, `store/redis/sentinel` | who is asked: one server, whoever of a cluster has the slot, or the primary that Sentinel names | |
//! | `store/redis/link`, `store/redis/supervisor`, `store/redis/identity` | a connection and the server it was made to, as one value; what replaces it; who the server is | |
//! | `store/redis/profile`, `store/redis/permissions`, `store/redis/preflight` | what a server says of itself, what its user lacks, and whether that is safe to lock on | |
//! | `store/redis/quorum`, `redis/quorum/*.lua` | independent servers, most of which must agree | |
//! | `store/redis/quorum/council`, `store/redis/quorum/sight`, `store/redis/quorum/changes` | which of them count, and what becomes of those that may have forgotten | |
//! | `store/redis/quorum/proposal`, `store/redis/quorum/votes`, `store/redis/quorum/lease`, `store/redis/quorum/poll` | taking a lock by a number that most accept; renewing, repairing and freeing it; a question to all of them | |
//! | `store/redis/quorum/turn`, `store/redis/quorum/waiters` | whose turn it is to try, among those who wait at this gateway | |
//! | `store/redis/replicas` | how many replicas have a lock, before it is handed out | |
//! | `store/redis/failure` | what each error means: not yet, not done, unknown | |
//! | [`store::embedded`] | a durable file, or memory: one writer, group commit | |
//! | `store::lines` | the lines of locks in a gateway's memory, for stores that keep them nowhere else | |
//! | [`store::survey`], `store/redis/survey`, `store/embedded/survey` | what a store is, and what can be promised on it, for people | |
//! | [`lock`] | the words of the domain, valid by construction | |
//! | [`clock`] | the clocks of the machine, suspend included | |
//!
//! # Invariants
//!
//! - A lock has a ttl from the command that makes it to its end: no step sets one without the other.
//! - A fencing number is minted in the same atomic step that grants the lock, and nowhere else.
//! - A lease is told shorter than it is, never longer: what is left is counted from before the store was asked.
//! - Unknown is never turned into yes or no. Doubt ends with an answer that would be the same whether or not the
//!   earlier copy ran, or with the voiding of that copy.
//! - Who stands in a line is the store's to say, and each script that makes a lock free offers it to the first who is
//!   present. What a gateway is told of it is a hint; it looks for itself, and a heartbeat finds what no hint told.
//! - A grant that reached no socket is taken back, and taking back never touches a lock that somebody was told of.
//! - Stores and logs never see a token: stores see its SHA-256.

pub mod api;
pub mod clock;
pub mod config;
pub mod lock;
pub mod run;
pub mod server;
pub mod service;
pub mod store;
