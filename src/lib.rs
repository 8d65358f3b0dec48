//! Fencepost, an HTTP gateway to distributed locks: the library behind the program, and what its tests use.
//!
//! # Code map
//!
//! `docs/internals` says how it works, with what guards each rule, and `docs/glossary.md` what each word means.
//!
//! Dependencies point one way: `main → api → service → store → lock`. A test reads the imports and holds this page
//! against them.
//!
//! | place | holds | may use |
//! |---|---|---|
//! | `main.rs` | arguments, bind, signals, exit code; the only `anyhow` | all |
//! | [`config`] | settings: flags, each also an environment variable | `api`, `server`, `store`, `client`, `lock` |
//! | `config/access`, `config/server`, `config/observe` | those that say who may do what, how connections are served, and what is said of it all | |
//! | `config/store` | those that say where locks live, which all commands share that look at a store | |
//! | `config/page`, `config/shipped` | the page on all of them, made of the flags; the manual and the completions, made of the same | |
//! | `config/run`, `config/run/once`, `config/shell`, `config/key` | those of `fencepost run` and `fencepost once`, of the other commands that ask gateways, and of `fencepost key` | |
//! | `config/gateway`, `config/lease` | those of all commands that ask gateways: which ones, with which key; which lock, and on which terms | |
//! | `config/arguments`, `config/address`, `config/environment` | reading them, and what is said of wrong ones; addresses to listen on; variables that are none of them | |
//! | [`client`] | the commands that ask gateways. They know of a gateway what its contract says | `access`, `lock`, `log`, `clock` |
//! | `client/gateway`, `client/reply`, `client/gateways`, `client/addresses` | the requests; what each answer means; which of several gateways is asked, and for how long at the start; what users write for them | |
//! | `client/once` | the result of work that is done once, as a command stores it | |
//! | `client/trouble`, `client/ending` | why there is no answer, in words; on what a program runs, and with which status and line a command ends | |
//! | `client/operating` | what is asked once: each answer is a decision, a refusal, or none | |
//! | `client/shell` | the commands for operators, for scripts that hold a lock from one line to another, and for the keys file | |
//! | `client/shell/looking`, `client/shell/breaking`, `client/shell/watching` | which locks are held, and by whom; ending one grant; what happens, as it happens | |
//! | `client/shell/holding`, `client/shell/keys` | a lock for a script; the keys file | |
//! | `client/shell/ask`, `client/shell/output` | asking until there is an answer; lines for people and for machines | |
//! | `client/run`, `client/run/once` | `fencepost run`: a command that runs while a lock is held; `fencepost once`: its output, which is passed on and stored | |
//! | `client/run/turn`, `client/run/progress` | waiting for the lock; what a person sees meanwhile | |
//! | `client/run/supervisor`, `client/run/lease`, `client/run/renewals` | the one loop while the command runs; when what must have ended; renewing | |
//! | `client/run/ending` | what gateways are told when the command has ended | |
//! | `client/run/processes`, `client/run/signals`, `client/run/terminal` | all that the command started; what is passed on to it; who may read the terminal | |
//! | `client/run/apart` | a run in a process of its own, where this one has children that the command did not start | |
//! | [`api`] | every route, and what all requests pass through | `service`, `store`, `lock`, `clock`, `server`, `access`, `audit`, `log`, `telemetry` |
//! | `api/state`, `api/context` | what the handlers share; what one request carries from the door to its line in the log | |
//! | `api/result_room` | the memory that results take on their way to the store, with a share for each caller | |
//! | `api/routes` | the handlers: parse → service → answer. `locks`, `list`, `once`, `records` and `health` answer at once, `hold` and `watch` go on; `several` and `taking` are what those have in common that take locks | |
//! | `api/routes/facades`, `api/routes/facades/*` | the protocols of other tools: each request of theirs as steps of ours | |
//! | `api/extract`, `api/extract/result` | what a caller says, parsed once and strictly; the one request with a body | |
//! | `api/answers`, `api/stream`, `api/headers` | what a caller is told, at once or event by event; the headers that are ours | |
//! | `api/problem` | errors as the caller sees them; the only map to status codes | |
//! | `api/middleware` | what all requests pass through: who makes them, their ids, their line in the log, what they are counted as, and whether their answers reached the socket | |
//! | `api/admission`, `api/route` | what is refused at the door; what routes are called, and which are open to all | |
//! | `api/ui`, `api/ui/*` | the page for people: the held locks, live, and a way to break one | |
//! | `api/pages`, `api/pages/file`, `api/pages/introduction`, `api/pages/swagger` | what is sent with every page, so that no other site makes use of it; files that are in the binary; where people begin; Swagger UI | |
//! | `api/openapi` | what the handlers' attributes cannot say of the document | |
//! | [`access`] | who may do what: rights, and those who have them | `lock` |
//! | `access/keyring`, `access/keys_file`, `access/entry`, `access/revoking`, `access/changing` | the keys in force; the file that says which, as it is read and as it is written; taking a key out of it; one change after the other | |
//! | `access/secret`, `access/scope`, `access/rate` | a key as it is shown, and what is kept of it; to which locks it reaches; how often it is used, and how often what is no key is shown | |
//! | `access/shares` | how much a key may have at once, and what of that is in use | |
//! | [`audit`] | who did what with which key, written down without stopping anybody | `log`, `telemetry` |
//! | [`log`] | the normal log | `telemetry` |
//! | `log/writer`, `log/later`, `log/unseen` | lines of a log, which a thread of its own writes; those that another thread puts into words; what stands in them by an escape | |
//! | [`files`] | files of settings that are read anew when they change, and on SIGHUP | `telemetry` |
//! | [`server`] | the accept loop: deadlines, caps, drain, TCP timeouts. It knows no lock | `telemetry` |
//! | `server/application`, `server/settings`, `server/phase` | what it serves, within which limits, and where it is in its life, which signals end | |
//! | `server/connection`, `server/requests` | one connection of HTTP: how long it lives, and when hyper has it; what its timers need to know of its requests | |
//! | `server/protocol`, `server/wire`, `server/heads`, `server/hpack` | how hyper speaks HTTP/1 and HTTP/2; the stream, before and between the times in which hyper has it; what heads say that hyper lets pass | |
//! | `server/tcp_timeout`, `server/backpressure` | how long a peer may leave something unacknowledged; what waits to be read, and who pays where that is too much | |
//! | `server/tls`, `server/handshake`, `server/handshake/turns`, `server/tls/subject` | certificates, read anew when they change; one connection's handshake, and when it may compute; whom a client's certificate names | |
//! | `server/addresses`, `server/descriptors` | what one address may have; the limit of open files | |
//! | [`service`] | what a lock or a record *does*, once, for every store: doubt, retries, rolling back | `store`, `lock`, `clock`, `telemetry` |
//! | `service/acquire`, `service/acquire_request` | taking a lock, on whose account; what is asked of it, and what becomes of that | |
//! | `service/roll_back`, `service/time` | undoing grants that no client was told of; when something is tried again, and what is left of a lease | |
//! | `service/wait`, `service/wakeups`, `service/heartbeat` | a request that waits; what wakes waiters; the heartbeat, so that nothing is missed | |
//! | `service/ledger`, `service/turns` | which locks count for whom; turns at what costs the store much, and places for what goes on without a client | |
//! | `service/admin` | what operators do: looking at all locks, and breaking one | |
//! | `service/once`, `service/once/wait`, `service/crowd` | what a record does; a request that waits for one; who waits here, and what wakes them | |
//! | `service/hold` | a lock that a connection holds: what renews it, and what ends it; several locks at once | |
//! | `service/watch` | what watchers are told of all this: by which gateway, in which order, and what they may have missed | |
//! | [`store`] | the trait of all stores, and the two ways in which a store can fail | `lock`, `clock`, `telemetry` |
//! | `store::request` | what a store is asked and what it answers, as data | |
//! | `store::metered` | any store, with a measure on each request | |
//! | [`store::redis`], `redis/scripts/*.lua` | Redis: each operation one script, one round trip | |
//! | `store/redis/settings`, `store/redis/address`, `store/redis/node`, `store/redis/client` | how it behaves; where servers are, and how to talk to them; connecting to one | |
//! | `store/redis/failure` | what each error means: not yet, not done, unknown | |
//! | `store/redis/scripts`, `store/redis/scripts/keys` | the scripts, how they are called and their replies read; what everything is called in Redis | |
//! | `store/redis/health`, `store/redis/health/identity`, `store/redis/health/profile`, `store/redis/health/permissions`, `store/redis/health/loading`, `store/redis/health/quorum`, `store/redis/health/preflight`, `store/redis/health/monitor`, `store/redis/health/room` | what a server says of itself, of which part of a quorum it is, what its user lacks, what it loads after a restart, whether that is safe to lock on, and how much room records have | |
//! | `store/redis/pubsub`, `store/redis/pubsub/hints`, `store/redis/pubsub/peer_bus` | what servers tell without being asked: hints to waiters, and what gateways tell each other | |
//! | `store/redis/connection`, `store/redis/connection/servers`, `store/redis/connection/cluster`, `store/redis/connection/slots`, `store/redis/connection/sentinel` | which server is asked: the only one, the one of a cluster that has the slot, or the primary that Sentinel names | |
//! | `store/redis/connection/link`, `store/redis/connection/batcher`, `store/redis/connection/connector`, `store/redis/connection/supervisor`, `store/redis/connection/door` | a connection and the server it was made to, as one value; requests that are ready at the same moment, as one call; how a connection is made; what replaces it; whether new ones are taken | |
//! | `store/redis/connection/replicas`, `store/redis/connection/scan` | how many replicas have a lock, before it is handed out; going through what servers hold, a bounded piece at a time | |
//! | `store/redis/exec`, `store/redis/acquiring`, `store/redis/listing` | a script that is run where the lock is; the ways of asking for a lock; a page of the list of all locks, or of all records | |
//! | `store/redis/once`, `store/redis/once/record`, `store/redis/once/aside` | what is asked about records; a record as scripts reply it; long results, past the scripts | |
//! | `store/redis/fast_path`, `store/redis/fast_path/operations`, `store/redis/fast_path/slots`, `store/redis/fast_path/records`, `store/redis/fast_path/recent` | what most acquires and releases come to, by small scripts; what one of them asks of a script; the same of slots, and of begins and results; locks to which this does not apply for a while | |
//! | [`store::quorum`], `store/quorum/scripts` | independent servers, most of which must agree; which store is at an address of Redis servers | |
//! | `store/quorum/membership`, `store/quorum/membership/ids`, `store/quorum/member_status`, `store/quorum/reconfiguration` | which of them count, and whose they are; what becomes of those that may have forgotten | |
//! | `store/quorum/proposal`, `store/quorum/tally`, `store/quorum/lease`, `store/quorum/ending`, `store/quorum/poll`, `store/quorum/reports` | taking a lock by a number that most accept; renewing, repairing and freeing it; a question to all of them, and what they report of locks | |
//! | `store/quorum/member`, `store/quorum/member/fast_path` | what one server is asked, and what small scripts do for all requests that are ready for it | |
//! | `store/quorum/turn`, `store/quorum/waiters` | whose turn it is to try, among the waiters of this gateway | |
//! | [`store::embedded`] | a durable file with one writer and group commit, or memory | |
//! | `store::wait_queue` | the wait queues of locks in a gateway's memory, for stores that keep them nowhere else | |
//! | [`store::diagnostics`], `store/redis/diagnostics`, `store/redis/diagnostics/promises`, `store/redis/diagnostics/contents`, `store/embedded/survey` | what a store is, and what can be promised on it, for people | |
//! | [`telemetry`], `telemetry/metrics` | what an operator sees besides the log; all numbers but those of requests | |
//! | `telemetry/traces`, `telemetry/collector` | where the time of a request went, and the way to the collector | |
//! | `telemetry/untraced` | the same for a program that was built without traces | |
//! | `telemetry/labels`, `telemetry/process` | numbers whose labels no client chooses; what the system says of the process | |
//! | [`lock`] | the words of the domain, valid by construction | |
//! | `lock/once` | the words of records: a worker, its place, its result | |
//! | [`clock`] | the clocks of the machine, suspend included | |
//!
//! # Invariants
//!
//! - A lock has a ttl from the command that makes it to its end: no step sets one without the other.
//! - A lock has no more holders than the smallest number that one of them has said. Offers count. What is counted are grants.
//! - A fencing token is minted in the same atomic step that grants the lock, and nowhere else.
//! - A lease is told shorter than it is, never longer: what is left is counted from before the store was asked.
//! - Unknown is never turned into yes or no. Doubt ends with an answer that would be the same whether or not the
//!   earlier copy ran, or with the voiding of that copy.
//! - The store keeps the wait queues. Each script that makes a lock free offers it to the first ticket that is present.
//!   What a gateway is told of it is a hint; it polls, and a heartbeat finds what no hint told.
//! - A grant that reached no socket is rolled back. Rolling back never touches a lock that a client was told of.
//! - A record that has no result outlives the lease of its worker by 7 days, so that the next worker is told of it. A result
//!   never changes, and only the last worker stores one.
//! - Stores and logs never see a token: stores see its SHA-256. Logs never see the secret of an API key, and neither does the
//!   file that it stands in.
//! - If keys are in use, every address needs one, unless it is open on purpose. If none are in use, only this machine
//!   is served, unless a setting says otherwise.

pub mod access;
pub mod api;
pub mod audit;
pub mod client;
pub mod clock;
pub mod config;
pub mod files;
pub mod lock;
pub mod log;
pub mod server;
pub mod service;
pub mod store;
pub mod telemetry;

pub use lock::once;
