//! What a program gives to a client: keys, times and settings. What is wrong is refused before anything is asked.

use tempfile::TempDir;
use tokio::process::Command;

use super::answers::{GRANT, Pretender, answer};
use super::workshop::{bare_python, go, root, run};
use super::{gateway, url};
use kit::{Client, Gateway, PATIENCE};

/// What a program prints that was told of this URL, with the client of its language next to it.
async fn said(program: &str, extension: &str, url: &str) -> String {
    let place = TempDir::new().unwrap();
    let path = place.path().join(format!("given.{extension}"));
    std::fs::write(&path, program).unwrap();
    let mut command = match extension {
        "py" => bare_python(path.to_str().unwrap()),
        "go" => {
            let mut command = go(place.path(), "example.com/given");
            command.args(["run", "."]);
            command
        }
        _ => {
            let client = root().join("examples/clients/fencepost.mjs");
            std::fs::copy(client, place.path().join("fencepost.mjs")).unwrap();
            let mut command = Command::new("node");
            command.arg(path);
            command
        }
    };
    command.env("FENCEPOST_URL", url).env("PYTHONDONTWRITEBYTECODE", "1").kill_on_drop(true);
    let running = run(&mut command);
    let said = tokio::time::timeout(4 * PATIENCE, running).await.expect("it does not end");
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The same at a gateway of its own, which may be looked at then.
async fn said_at_a_gateway(program: &str, extension: &str) -> (String, Gateway) {
    let gateway = gateway().await;
    (said(program, extension, &url(&gateway)).await, gateway)
}

const CHANGED_PY: &str = r#"
from fencepost import Busy, Fencepost
fencepost, keys = Fencepost(), ["a", "b"]
def left(key):
    try: fencepost.release(fencepost.acquire(key, ttl_s=5))
    except Busy as busy: return "renewed" if busy.holder["expires_in_ms"] > 200_000 else "held"
    return "free"
with fencepost.hold(keys, ttl_s=30) as lease:
    keys.clear()
    fencepost.renew(lease, 300)
    print(left("a"), left("b"))
print(left("a"), left("b"))
"#;
const CHANGED_ASYNC: &str = r#"
import asyncio
from fencepost_async import AsyncFencepost, Busy
async def main():
    fencepost, keys = AsyncFencepost(), ["a", "b"]
    async def left(key):
        try: await fencepost.release(await fencepost.acquire(key, ttl_s=5))
        except Busy as busy: return "renewed" if busy.holder["expires_in_ms"] > 200_000 else "held"
        return "free"
    async with fencepost.hold(keys, ttl_s=30) as lease:
        keys.clear()
        await fencepost.renew(lease, 300)
        print(await left("a"), await left("b"))
    print(await left("a"), await left("b"))
asyncio.run(main())
"#;
const CHANGED_JS: &str = r#"
import { Fencepost } from "./fencepost.mjs";
const fencepost = new Fencepost(), keys = ["a", "b"];
const left = (key) => fencepost.acquire(key, { ttlMs: 5_000 }).then((lease) => fencepost.release(lease)).then(
  () => "free", (busy) => busy.holder.expires_in_ms > 200_000 ? "renewed" : "held");
await fencepost.hold(keys, { ttlMs: 30_000 }, async (lease) => {
  keys.splice(0);
  await fencepost.renew(lease, 300_000);
  console.log(await left("a"), await left("b"), Number.isFinite(lease.endsAt) ? "" : "for ever");
});
console.log(await left("a"), await left("b"));
"#;
const CHANGED_GO: &str = r#"package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/given/fencepost"
)

var ctx, client = context.Background(), (*fencepost.Client)(nil)

func left(key string) string {
	lease, err := client.Acquire(ctx, key, fencepost.Options{TTL: 5 * time.Second})
	var busy *fencepost.Error
	if err == nil {
		_ = client.Release(ctx, lease)
		return "free"
	} else if errors.As(err, &busy) && busy.Holder.ExpiresInMs > 200_000 {
		return "renewed"
	}
	return "held"
}

func main() {
	client, _ = fencepost.New("")
	keys := []string{"a", "b"}
	err := client.HoldAll(ctx, keys, fencepost.Options{}, func(ctx context.Context, lease *fencepost.Lease) error {
		keys[0], keys[1] = "c", "d"
		err := client.Renew(ctx, lease, 300*time.Second)
		fmt.Println(left("a"), left("b"))
		return err
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(left("a"), left("b"))
}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_keeps_its_locks_when_the_caller_changes_its_list_of_keys() {
    for (program, extension) in
        [(CHANGED_PY, "py"), (CHANGED_ASYNC, "py"), (CHANGED_JS, "mjs"), (CHANGED_GO, "go")]
    {
        let (said, _gateway) = said_at_a_gateway(program, extension).await;
        assert_eq!(said, "renewed renewed free free", "{program}");
    }
}

/// Each line is a call that must be refused. Were it asked, no gateway would answer.
const WRONG_PY: &str = r#"
import asyncio
from fencepost import Fencepost, Refused
from fencepost_async import AsyncFencepost
fencepost, nan, in_loop = Fencepost(), float("nan"), AsyncFencepost()
def work(place): return "done"
calls = [
    *(lambda key=key: fencepost.acquire(key) for key in (b"abc", None, 5, [], (), {"a"}, ["a", b"b"], ["a", ["b"]])),
    *(lambda key=key: fencepost.acquire(key) for key in ("half \ud83d", "\udcff", ["a", "\ude00 half"])),
    *(lambda key=key: fencepost.once(key, work) for key in (b"abc", None, 5, "half \ud83d")),
    *(lambda key=key: asyncio.run(in_loop.acquire(key)) for key in (b"abc", None, [], "half \ud83d")),
    *(lambda key=key: asyncio.run(in_loop.once(key, work)) for key in (b"abc", None, "half \ud83d")),
    *(lambda time=time: fencepost.acquire("k", ttl_s=time) for time in (nan, "3", None)),
    *(lambda time=time: fencepost.acquire("k", wait_s=time) for time in (nan, "3", None)),
    *(lambda time=time: fencepost.once("k", work, keep_s=time) for time in (nan, "3", None)),
    *(lambda value=value: fencepost.once("k", work, takeover=value) for value in ("false", "", 0, None)),
    *(lambda time=time: Fencepost(retry_for_s=time) for time in (nan, "3", None)),
    *(lambda time=time: Fencepost(try_for_s=time) for time in (nan, "3", None)),
    *(lambda time=time: Fencepost(store_for_s=time) for time in (nan, "3", None)),
    *(lambda urls=urls: Fencepost(urls) for urls in ("", [], iter([]), [""])),
]
for number, call in enumerate(calls):
    try: print("not refused:", number, call())
    except Refused: pass
    except Exception as error: print("not refused:", number, repr(error))
"#;
const WRONG_JS: &str = r#"
import { Fencepost, Refused } from "./fencepost.mjs";
const fencepost = new Fencepost(), work = async () => "done", times = [NaN, "3", null];
const keys = ["half 😀".slice(0, 6), undefined, null, {}, NaN, [], [undefined], ["a", ["b"]], Buffer.from("a"), ["a", "\ude00"]];
const calls = [
  ...keys.map((key) => () => fencepost.acquire(key)),
  ...keys.slice(0, 5).map((key) => () => fencepost.once(key, {}, work)),
  ...times.flatMap((time) => ["ttlMs", "waitMs"].map((name) => () => fencepost.hold("k", { [name]: time }, work))),
  ...times.flatMap((time) => ["ttlMs", "waitMs", "keepMs"].map((name) => () => fencepost.once("k", { [name]: time }, work))),
  ...["false", "", 0, null].map((takeover) => () => fencepost.once("k", { takeover }, work)),
  ...times.flatMap((time) => ["retryForMs", "tryForMs", "storeForMs"].map((name) => () => new Fencepost(undefined, { [name]: time }))),
  ...["", [], [""]].map((urls) => () => new Fencepost(urls)),
];
for (const [number, call] of calls.entries()) {
  const end = await Promise.resolve().then(call).catch((error) => error);
  if (!(end instanceof Refused)) console.log("not refused:", number, end);
}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_key_no_time_and_no_setting_is_refused_before_anything_is_asked() {
    for (program, extension) in [(WRONG_PY, "py"), (WRONG_JS, "mjs")] {
        assert_eq!(said(program, extension, "http://127.0.0.1:1").await, "", "{extension}");
    }
}

const NAMED: &str = r#"
from enum import Enum
from fencepost import Busy, Fencepost
class Lock(str, Enum): REPORT, BILL = "report", "bill"
fencepost = Fencepost()
lease = fencepost.acquire(Lock.REPORT)
print(lease.key, *lease.fencing_tokens)
for key in "report", ("bill", Lock.REPORT), Lock.REPORT:
    try: fencepost.acquire(key)
    except Busy: print("busy")
fencepost.release(lease)
print(*fencepost.acquire((Lock.BILL, Lock.REPORT)).fencing_tokens)
for key in Lock.BILL, "bill": print(fencepost.once(key, lambda place: "done").was_replayed)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_an_enum_is_the_lock_of_its_value() {
    let (said, _gateway) = said_at_a_gateway(NAMED, "py").await;
    assert_eq!(said, "report report busy busy busy bill report False True");
}

/// The programs of an event loop whose tasks are all canceled, as at a shutdown.
const CANCELED: &str = r#"
import asyncio
from fencepost_async import AsyncFencepost
begun = asyncio.Semaphore(0)
def cancel_the_others():
    for task in asyncio.all_tasks() - {asyncio.current_task()}: task.cancel()
async def work(lease):
    begun.release()
    try: await asyncio.Event().wait()
    except asyncio.CancelledError:
        for _ in range(45):
            await asyncio.sleep(0.1)
            lease.check()
            assert not lease.lost.is_set()
    return "done"
async def hold():
    async with AsyncFencepost().hold("held", ttl_s=2) as lease: return await work(lease)
async def main():
    tasks = [asyncio.create_task(hold()), asyncio.create_task(AsyncFencepost().once("work", work, ttl_s=2))]
    for _ in tasks: await begun.acquire()
    await asyncio.sleep(1)  # Until each has renewed.
    cancel_the_others()
    held, result = await asyncio.gather(*tasks)
    print(held, result.body.decode())
asyncio.run(main())
"#;
const ABANDONED: &str = r#"
import asyncio
from fencepost_async import AsyncFencepost
async def itself():
    async with AsyncFencepost().hold("itself", ttl_s=2) as lease:
        for after_s in 0, 0.5:
            await asyncio.sleep(after_s)
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks: task.cancel()
            await asyncio.wait(tasks)
        await asyncio.sleep(3)
        lease.check()
        return lease.lost.is_set()
async def left():
    block = AsyncFencepost().hold("left")
    return block, await block.__aenter__()
print(asyncio.run(itself()))
block, lease = asyncio.run(left())
print(lease.lost.is_set())
"#;

#[tokio::test(flavor = "multi_thread")]
async fn in_async_python_work_that_goes_on_after_all_tasks_are_canceled_keeps_its_lease() {
    let (said, gateway) = said_at_a_gateway(CANCELED, "py").await;
    assert_eq!(said, "done done");
    Client::new(gateway.address).get("/locks/held").send().await.expect_problem(404, "not-held");
}

/// A holder may also wait for all that it canceled; and a block that is never left must not keep a loop alive.
#[tokio::test(flavor = "multi_thread")]
async fn in_async_python_a_renewal_that_is_canceled_ends_at_once_and_another_goes_on_while_its_holder_does() {
    let (said, _gateway) = said_at_a_gateway(ABANDONED, "py").await;
    assert_eq!(said, "False True");
}

/// It speaks to the gateway by itself, and loses the answer.
const UNTRACED: &str = r#"package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/given/fencepost"
)

type losing struct{}

func (losing) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(request.Clone(context.Background()))
	if err == nil && request.Method == "PUT" {
		_ = answer.Body.Close()
		return nil, errors.New("the answer is lost")
	}
	return answer, err
}

func main() {
	client, _ := fencepost.New("")
	client.RetryFor, client.HTTP = time.Second, &http.Client{Transport: losing{}}
	_, err := client.Acquire(context.Background(), "k", fencepost.Options{})
	fmt.Println(errors.Is(err, fencepost.ErrUnknown))
}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn in_go_a_transport_that_tells_nothing_leaves_it_unknown_and_gives_back_what_was_granted() {
    let (said, gateway) = said_at_a_gateway(UNTRACED, "go").await;
    assert_eq!(said, "true");
    Client::new(gateway.address).get("/locks/k").send().await.expect_problem(404, "not-held");
}

/// Half of an emoji in a note for people is shown as another character: the work goes on.
#[tokio::test(flavor = "multi_thread")]
async fn in_python_an_owner_that_is_no_text_is_no_failure() {
    let program =
        "from fencepost import Fencepost\nprint(Fencepost().acquire('k', owner='half \\ud83d').key)";
    let (said, gateway) = said_at_a_gateway(program, "py").await;
    assert_eq!(said, "k");
    let lock = Client::new(gateway.address).get("/locks/k").send().await.expect(200);
    assert_eq!(lock.json()["owner"], "half ?");
}

/// Its `HTTP` follows redirects, as those of net/http do.
const REDIRECTED: &str = r#"package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/given/fencepost"
)

func main() {
	client, _ := fencepost.New("")
	client.RetryFor, client.HTTP = time.Second, &http.Client{}
	_, err := client.Acquire(context.Background(), "k", fencepost.Options{})
	fmt.Println(errors.Is(err, fencepost.ErrUnknown))
}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn in_go_no_redirect_is_followed_with_an_http_of_its_own() {
    let other = Pretender::start(|_| answer("201 Created", GRANT)).await;
    let moved = format!("307 Temporary Redirect\r\nlocation: {}/lock?key=k", other.url);
    let first = Pretender::start(move |_| answer(&moved, "")).await;
    assert_eq!(said(REDIRECTED, "go", &first.url).await, "true");
    assert_eq!((first.has_heard()[0].as_str(), other.has_heard().len()), ("PUT", 0));
}

const FOREIGN_PY: &str = r#"
from fencepost import Fencepost, Unknown
try: Fencepost(retry_for_s=0.5).acquire("k")
except Unknown as error: print(error)
"#;
const FOREIGN_ASYNC: &str = r#"
import asyncio
from fencepost_async import AsyncFencepost, Unknown
try: asyncio.run(AsyncFencepost(retry_for_s=0.5).acquire("k"))
except Unknown as error: print(error)
"#;
const FOREIGN_JS: &str = r#"
import { Fencepost } from "./fencepost.mjs";
await new Fencepost(undefined, { retryForMs: 500 }).acquire("k").catch((error) => console.log(error.message));
"#;
const FOREIGN_GO: &str = r#"package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/given/fencepost"
)

func main() {
	client, _ := fencepost.New("")
	client.RetryFor = time.Second / 2
	_, err := client.Acquire(context.Background(), "k", fencepost.Options{})
	var told *fencepost.Error
	_ = errors.As(err, &told)
	fmt.Println(err, told.Detail)
}
"#;

/// Programs log their exceptions.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_tells_of_a_foreign_answer_has_no_lease_token_and_an_end() {
    for (program, extension) in
        [(FOREIGN_PY, "py"), (FOREIGN_ASYNC, "py"), (FOREIGN_JS, "mjs"), (FOREIGN_GO, "go")]
    {
        let grant = GRANT.replace(r#""t""#, r#""SECRET""#);
        let mixing = Pretender::start(move |_| answer("201 Created", &grant)).await;
        let why = said(program, extension, &mixing.url).await;
        assert!(why.contains("201") && !why.contains("SECRET"), "{extension}: {why}");

        let page = format!("<html>No gateway. {}", "x".repeat(5000));
        let failing = Pretender::start(move |_| answer("502 Bad Gateway", &page)).await;
        let why = said(program, extension, &failing.url).await;
        assert!(why.contains("No gateway.") && why.len() < 1000, "{extension}: {why}");
    }
}
