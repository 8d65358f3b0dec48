//! What people add to the web servers of docs/recipes/idempotency.md.

/// What people add to the program of the page.
pub const MORE_HANDLERS: &str = r#"
const once = idempotent(locks, { userOf, ttlMs: 30_000 }), tell = (request, response) => response.json(request.body);
app.post("/forgets", express.urlencoded(), once, tell);
app.post("/long", express.urlencoded(keepBody), once, (request, response) => {
  response.status(201).location("/x").set("Content-Encoding", "identity").end("x".repeat(50_000));
});
app.post("/form", express.urlencoded(keepBody), once, tell);
app.post("/parts", express.urlencoded(keepBody), once, (request, response) => {
  response.writeHead(201, request.body.list ? ["Location", "/x"] : { Location: "/x" });
  response.write("one ", () => response.end("two", () => console.log("told")));
});
"#;

/// The first copies of the middleware for Starlette stored the headers as an object.
pub const FIRST_FORM: &str = r#"
import json
import idempotent
def first_form(answer, most, later=idempotent.Answer.envelope):
    told = json.loads(later(answer, most).body)
    return idempotent.Result(json.dumps(told | {"headers": dict(told["headers"])}).encode(), told["status"])
idempotent.Answer.envelope = first_form
"#;

/// Handlers that set headers in the ways that node has, and send what is no UTF-8.
pub const HEADERS: &str = r#"
const heads = {
  custom: (response) => response.setHeader("Content-Type", "custom"),
  empty: (response) => response.setHeader("Content-Type", ""),
  list: (response) => response.setHeader("Content-Type", ["text/plain"]),
  written: (response) => response.writeHead(200, { "Content-Type": "text/html" }),
  links: (response) => response.writeHead(200, ["Content-Type", "text", "Link", "</a>", "Link", "</b>"]),
};
app.post("/said/:how", idempotent(locks, { userOf }), (request, response) => {
  heads[request.params.how](response);
  response.end(Buffer.from([0xe9]));
});
"#;

/// Handlers whose status is no number of Express, which node takes, and one that works for a while.
pub const STATUSES: &str = r#"
const statuses = {
  text: (response) => { response.statusCode = "202"; },
  written: (response) => response.writeHead("202", { Location: "/x" }),
  fraction: (response) => { response.statusCode = 202.5; },
};
app.post("/status/:how", idempotent(locks, { userOf }), (request, response) => {
  statuses[request.params.how](response);
  response.end("x");
});
app.post("/slow", idempotent(locks, { userOf, leftMs: Infinity }), (request, response) => {
  setTimeout(() => response.status(201).end("done"), 3000);
});
"#;

/// What is made of variables of the environment that are not there.
pub const UNSET: &str = r#"
const unset = { takeover: process.env.NOT_THERE, leftMs: Number(process.env.NOT_THERE) };
app.post("/unset", idempotent(locks, { userOf, takeover: unset.takeover }), (request, response) => {
  response.status(500).json({ detail: "tried" });
});
let refusal = "none";
try { idempotent(locks, { userOf, leftMs: unset.leftMs }); } catch (error) { refusal = error.name; }
app.post("/left-ms", (request, response) => response.end(refusal));
"#;

/// Handlers that go on after their answer.
pub const LATE_HANDLERS: &str = r#"
const late = {
  next: (response, next) => next(),
  error: () => { throw new Error("after the answer"); },
  "own-error": () => { throw Object.assign(new Error("after the answer"), { isOwn: true }); },
  answer: async (response) => { await null; response.location("/y").status(400).json({ is: "wrong" }); },
};
app.post("/late/:how", express.urlencoded(keepBody), idempotent(locks, { userOf }), (request, response, next) => {
  response.status(201).location("/x").json({ receipt: "ch_1" });
  return late[request.params.how](response, next);
});
app.use((error, request, response, next) => error.isOwn ? response.status(400).json({ is: "wrong" }) : next(error));
"#;

/// Handlers whose answer breaks off.
pub const BROKEN_HANDLERS: &str = r#"
import { Readable, pipeline } from "node:stream";
const fails = (more) => Object.assign(new Error("in the middle"), { status: 402, ...more });
const failing = async function* () { yield "more"; throw fails(); };
const broken = {
  thrown: () => { throw fails(); },
  own: () => { throw fails({ isOwn: true }); },
  next: (response, next) => next(fails()),
  answered: (response) => response.status(402).json({ is: "declined" }),
  piped: (response) => pipeline(Readable.from(failing()), response, () => {}),
  twice: (response) => pipeline(Readable.from(failing()), response, (error) => response.destroy(error)),
  other: (response) => response.status(402).end(),
  left: (response) => response.destroy(),
};
app.post("/broken/:how", idempotent(locks, { userOf }), (request, response, next) => {
  response.status(200).write("half");
  return broken[request.params.how](response, next);
});
app.use((error, request, response, next) => error.isOwn ? response.status(402).json({ is: "declined" }) : next(error));
"#;

/// A handler that is busy, behind a middleware that says something of each answer.
pub const BUSY_HANDLER: &str = r#"
app.use((request, response, next) => next(response.location("/before") && undefined));
app.post("/busy", express.urlencoded(keepBody), idempotent(locks, { userOf }), (request, response) => {
  response.status(409).location("/handler").json({ detail: "another has the lock" });
});
"#;

/// What people may take for a user.
pub const USERS: &str = r#"
const users = { object: { id: 1 }, promise: Promise.resolve("ann"), array: ["ann"], nan: NaN, number: 7 };
const found = (request) => users[request.params.user];
app.post("/as/:user", express.urlencoded(keepBody), idempotent(locks, { userOf: found }), (request, response) => {
  response.json({});
});
"#;

/// Handlers of the other server: two with a task, one with a commit behind its answer, one that is busy, one that says
/// much, two with headers of their own, and a path that its redirects quote.
pub const MORE_TASKS: &str = r#"
from fastapi import BackgroundTasks, Depends
def fail() -> None: raise RuntimeError("after the answer")
def refuse() -> None: raise HTTPException(400, "after the answer")
async def commit():
    yield
    raise HTTPException(409, "it does not commit")
@app.post("/charges/later", status_code=201)
async def later(tasks: BackgroundTasks) -> dict[str, str]:
    tasks.add_task(fail)
    return {"is": "done"}
@app.post("/charges/later-refused", status_code=201)
async def later_refused(tasks: BackgroundTasks) -> dict[str, str]:
    tasks.add_task(refuse)
    return {"is": "done"}
@app.post("/charges/uncommitted", status_code=201)
async def uncommitted(committed: None = Depends(commit)) -> dict[str, str]: return {"is": "done"}
@app.post("/charges/busy")
async def busy() -> None: raise HTTPException(409, "another has the lock")
@app.post("/charges/long")
async def long() -> Response: return Response("x" * 50_000, 201, {"Location": "/x", "Content-Encoding": "identity"})
@app.post("/charges/csv")
async def csv() -> Response: return Response(b"\xe9", 200, {"Content-Type": "text/csv"})
@app.post("/charges/twice")
async def twice(response: Response) -> dict[str, str]:
    for name, value in [("Content-Type", "text/x"), ("Link", "</a>"), ("Link", "</b>")]:
        response.headers.append(name, value)
    return {"is": "done"}
@app.post("/charges/of/{name}", status_code=201)
async def named(name: str) -> dict[str, str]: return {"is": name}
"#;

/// As a server that does not say how the path was written, which it need not.
pub const NO_RAW_PATH: &str = r#"
from starlette.types import Receive, Scope, Send
served = app
async def app(scope: Scope, receive: Receive, send: Send) -> None:
    scope.pop("raw_path", None)
    await served(scope, receive, send)
"#;

/// Where apps stand below a path of their own: in another one, and behind a proxy that takes that path away, or leaves it.
pub const MOUNTED: &str = r#"
inner, app = app, FastAPI()
app.mount("/api", inner)
"#;
pub const BEHIND_A_PROXY: &str = "app.root_path = '/api'\n";

/// Handlers that act, and then fail at a lock or a record of their own.
pub const LOCKS_OF_EXPRESS: &str = r#"
import { appendFileSync } from "node:fs";
import { NothingDone } from "./fencepost.mjs";
const away = new Fencepost("http://127.0.0.1:1");
const failing = {
  away: () => away.hold("stock", {}, async () => {}),
  busy: () => locks.hold("stock", {}, () => locks.hold("stock", {}, async () => {})),
  mismatch: async () => { for (const fingerprint of ["1", "2"]) await locks.once("stock:1", { fingerprint }, async () => "x"); },
  nothing: () => locks.once("mail:1", {}, async () => { throw new NothingDone(); }),
};
app.post("/charges/:how", idempotent(locks, { userOf, ttlMs: 30_000 }), async (request) => {
  appendFileSync("charged", `${request.params.how}\n`);
  await failing[request.params.how]();
});
"#;

/// The same for the other server.
pub const LOCKS_OF_STARLETTE: &str = r#"
from fencepost_async import AsyncPlace, NothingDone
away = AsyncFencepost("http://127.0.0.1:1")
async def unsent(place: AsyncPlace) -> str: raise NothingDone
async def made(place: AsyncPlace) -> str: return "x"
@app.post("/charges/{how}")
async def fails(how: str) -> None:
    with open("charged", "a") as charged: print(how, file=charged)
    if how == "away":
        async with away.hold("stock"): pass
    elif how == "busy":
        async with locks.hold("stock"), locks.hold("stock"): pass
    elif how == "mismatch":
        for fingerprint in "12": await locks.once("stock:1", made, fingerprint=fingerprint)
    else:
        await locks.once("mail:1", unsent)
"#;
