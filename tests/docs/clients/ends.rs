//! What is over stays over: leases that were given back, renewals, and attempts whose copies come late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::answers::{Pretender, answer};
use super::workshop::{self, Kind, root};
use super::{Scene, answered, gateway, guarded_gateway, url};
use kit::proxy::{Fate, Framing, Gate, Progress};
use kit::{Client, Gateway, Proxy, eventually};

with_each!(
    super::Kind::EXAMPLES;
    a_lease_that_was_given_back_is_over,
    no_renewal_outlives_the_work,
    a_late_copy_takes_no_lock_after_busy,
    a_renewal_without_an_answer_before_the_end_is_lost,
    an_answer_that_changes_the_protocol_is_none,
    a_wait_may_be_as_long_as_you_like,
    a_dead_connection_costs_no_lease_over_tls,
);

/// Also before the release is answered, and if it never is: another thread may still look at the lease.
async fn a_lease_that_was_given_back_is_over(kind: Kind) {
    let scene = Scene::start().await;
    let proxy = scene.proxy.url();
    let mut client = kind.start_in(&[("FENCEPOST_URL", &proxy), ("RETRY_FOR_S", "1")]).await;
    client.is_granted("hold k 300 0").await;
    assert_eq!(client.does("leave").await, "released");
    assert_eq!(client.does("check").await, "lost");
    client.is_granted("acquire k 300 0").await;
    assert_eq!(client.does("check").await, "held");
    let is_release = |message: &[u8]| message.starts_with(b"DELETE");
    scene.proxy.set_policy(move |message| if is_release(message) { Fate::CutBefore } else { Fate::Pass });
    assert_eq!(client.does("release").await, "unknown");
    assert_eq!(client.does("check").await, "lost");
}

/// It would lengthen a lock that no client holds any more, if its release was lost.
async fn no_renewal_outlives_the_work(kind: Kind) {
    let scene = Scene::start().await;
    let proxy = scene.proxy.url();
    let mut client = kind.start_in(&[("FENCEPOST_URL", &proxy), ("RETRY_FOR_S", "1")]).await;
    let renewals = Arc::<AtomicUsize>::default();
    let counts = renewals.clone();
    client.is_granted("hold k 9 0").await;
    scene.proxy.set_policy(move |message| {
        if !message.starts_with(b"PATCH") {
            return Fate::CutBefore;
        }
        counts.fetch_add(1, Ordering::SeqCst);
        Fate::HalfOpen
    });
    eventually("it is to be renewed", async || renewals.load(Ordering::SeqCst) > 0).await;
    assert_eq!(client.does("leave").await, "released");
    let sent = renewals.load(Ordering::SeqCst);
    // A try is given 1 s.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(renewals.load(Ordering::SeqCst), sent);
}

async fn a_late_copy_takes_no_lock_after_busy(kind: Kind) {
    let scene = Scene::start().await;
    let holder = scene.look.put("/locks/k?ttl=5m").send().await.expect(201).token();
    let (cut, message) = (Gate::new(), Gate::new());
    let mut late = scene.proxy.expect("PUT", Fate::Late { cut: cut.clone(), message: message.clone() });
    let mut client = scene.client(kind).await;
    client.begins("acquire k 300 0").await;
    late.reaches(Progress::Seen).await;
    cut.cancel();
    assert_eq!(client.says().await, "busy");
    scene.look.delete("/locks/k").token(&holder).send().await.expect(204);
    message.cancel();
    late.reaches(Progress::Answered).await;
    scene.is_free().await;
}

async fn a_renewal_without_an_answer_before_the_end_is_lost(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    client.is_granted("acquire k 2 0").await;
    scene.proxy.set_policy(|_| Fate::LoseAnswers);
    assert_eq!(client.does("renew 2").await, "lost");
}

async fn an_answer_that_changes_the_protocol_is_none(kind: Kind) {
    let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
    let gateway = Pretender::start(move |_| answer.to_owned()).await;
    let mut client = kind.start_in(&[("FENCEPOST_URL", &gateway.url), ("RETRY_FOR_S", "1")]).await;
    assert_eq!(client.does("acquire k 300 0").await, "unknown");
}

/// This is nearly all that a duration of Go can be.
async fn a_wait_may_be_as_long_as_you_like(kind: Kind) {
    let gateway = gateway().await;
    Client::new(gateway.address).put("/locks/k?ttl=2s").send().await.expect(201);
    kind.start(&url(&gateway)).await.is_granted("acquire k 30 9223372036").await;
}

/// Repetitions take a new connection.
async fn a_dead_connection_costs_no_lease_over_tls(kind: Kind) {
    let (gateway, certificates, _keys, key) = guarded_gateway().await;
    let proxy = Proxy::start(gateway.address.port(), Framing::Chunks).await;
    let (url, authority) = (format!("https://127.0.0.1:{}", proxy.port()), certificates.authority());
    let settings =
        [("FENCEPOST_URL", url.as_str()), ("FENCEPOST_API_KEY", &key), ("SSL_CERT_FILE", &authority)];
    let mut client = kind.start_in(&settings).await;
    client.is_granted("hold k 6 0").await;
    proxy.freeze();
    let is_past = Instant::now() + Duration::from_secs(7);
    eventually("the first lease is past", async || Instant::now() > is_past).await;
    assert_eq!(client.does("check").await, "held");
    assert_eq!(client.does("leave").await, "released");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_go_a_context_that_has_ended_ends_no_release() {
    let scene = Scene::start().await;
    let mut client = scene.client(Kind::Go).await;
    client.is_granted("acquire k 300 0").await;
    assert_eq!(client.does("release-late").await, "released");
    scene.is_free().await;
    assert_eq!(client.does("check").await, "lost");
    // Of several, none stays.
    assert!(client.does("both k l 300 0").await.starts_with("granted "));
    assert_eq!(client.does("release-late").await, "released");
    scene.is_free().await;
    scene.look.get("/locks/l").send().await.expect_problem(404, "not-held");
    // It is lost, which the release still says.
    client.is_granted("acquire k 300 0").await;
    scene.look.delete("/locks/k?force=true").send().await.expect(204);
    assert_eq!(client.does("release-late").await, "lost");
}

/// What a script in Python says that is told of this URL.
async fn said_by_python(code: &str, url: &str) -> String {
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), code).unwrap();
    let mut command = workshop::bare_python(script.path().to_str().unwrap());
    workshop::run(command.env("FENCEPOST_URL", url)).await.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_task_of_python_stores_its_result_before_the_program_ends() {
    let scene = Scene::start().await;
    // It is canceled after the first attempt, and the second one stores.
    scene.proxy.expect("POST", Fate::CutBefore);
    let code = "import asyncio\nfrom fencepost_async import AsyncFencepost\n\
        async def work(place):\n  \
          asyncio.get_running_loop().call_later(0.1, asyncio.current_task().cancel)\n  \
          return b'paid'\n\
        try: asyncio.run(AsyncFencepost().once('k', work))\n\
        except asyncio.CancelledError: print('canceled')\n";
    let proxy = scene.proxy.url();
    assert_eq!(said_by_python(code, &proxy).await, "canceled");
    assert_eq!(scene.look.get("/once/k").send().await.json()["state"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_one_key_is_held_in_python() {
    let gateway = gateway().await;
    let code = "from fencepost import Fencepost\n\
        for keys in (['k'], ('k',)):\n  \
          with Fencepost().hold(keys) as lease: print(*lease.fencing_tokens, lease.fencing_token > 0)\n";
    assert_eq!(said_by_python(code, &url(&gateway)).await, "k True\nk True");
}

/// As the handler of a signal does, at any moment: on Ctrl-C in a notebook, or when the time for a task is over.
#[tokio::test(flavor = "multi_thread")]
async fn in_python_no_renewal_goes_on_after_work_whose_release_is_interrupted() {
    let gateway = gateway().await;
    let code = "import sys, fencepost\n\
        locks = fencepost.Fencepost()\n\
        def interrupt(name):\n  \
          real = getattr(fencepost, name)\n  \
          def fake(*given):\n    \
            if sys._getframe(1).f_code.co_name not in ('hold', 'release'): return real(*given)\n    \
            setattr(fencepost, name, real)\n    \
            raise KeyboardInterrupt\n  \
          setattr(fencepost, name, fake)\n\
        for name in ('suppress', 'now'):\n  \
          try:\n    \
            with locks.hold(name, ttl_s=2) as lease: interrupt(name)\n  \
          except KeyboardInterrupt: print(lease.is_over())\n  \
          locks.acquire(name, wait_s=8)\n";
    assert_eq!(said_by_python(code, &url(&gateway)).await, "True\nTrue");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_python_tries_may_be_endless() {
    let gateway = gateway().await;
    let code = "from math import inf\n\
        from fencepost import Fencepost\n\
        with Fencepost(retry_for_s=inf, try_for_s=inf).hold('k', wait_s=inf): print('held')\n";
    assert_eq!(said_by_python(code, &url(&gateway)).await, "held");
}

/// As on Windows.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_held_where_python_has_no_clock_of_unix() {
    let gateway = gateway().await;
    let code = "import time\n\
        for name in [name for name in vars(time) if name.startswith(('CLOCK_', 'clock_'))]: delattr(time, name)\n\
        from fencepost import Fencepost\n\
        with Fencepost().hold('k', ttl_s=3) as lease: time.sleep(4); lease.check(); print('held')\n";
    assert_eq!(said_by_python(code, &url(&gateway)).await, "held");
}

/// One thread turns the list while another does.
#[tokio::test(flavor = "multi_thread")]
async fn threads_of_python_that_share_a_client_forget_no_gateway() {
    let code = "import random\n\
        from fencepost import Fencepost, Unavailable\n\
        turns = random.Random(1)\n\
        class Raced(Fencepost):\n  \
          @property\n  \
          def urls(self):\n    \
            was = self.now\n    \
            if turns.random() < 0.5: self.now = [*was[1:], was[0]]\n    \
            return was\n  \
          @urls.setter\n  \
          def urls(self, urls): self.now = list(urls)\n\
        client = Raced(['http://127.0.0.1:1', 'http://127.0.0.1:2', 'http://127.0.0.1:3'])\n\
        for _ in range(20):\n  \
          try: client.acquire('k')\n  \
          except Unavailable: pass\n\
        print(len(set(client.now)))\n";
    assert_eq!(said_by_python(code, "http://127.0.0.1:1").await, "3");
}

/// What a script in JavaScript says that is told of this URL.
async fn said_by_node(code: &str, url: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    std::fs::copy(root().join("examples/clients/fencepost.mjs"), place.path().join("fencepost.mjs")).unwrap();
    std::fs::write(place.path().join("script.mjs"), code).unwrap();
    let mut command = tokio::process::Command::new("node");
    let command = command.arg(place.path().join("script.mjs")).env("FENCEPOST_URL", url);
    workshop::run(command).await.trim().to_owned()
}

/// Such as the loss of the lease around it, whose signal was handed on.
#[tokio::test(flavor = "multi_thread")]
async fn in_javascript_no_lock_is_left_behind_whatever_the_reason_of_the_signal_is() {
    let scene = Scene::start().await;
    let code = "import { Fencepost, Lost } from './fencepost.mjs';\n\
        for (const what of ['hold', 'once']) {\n  \
          const outer = new AbortController();\n  \
          setTimeout(() => outer.abort(new Lost('outer')), 1500);\n  \
          const options = { ttlMs: 300_000, signal: outer.signal };\n  \
          await new Fencepost()[what]('k', options, async () => 'x').catch((error) => console.log(error.message));\n\
        }\n";
    for _ in 0..2 {
        scene.proxy.expect("PUT", Fate::LoseAnswers);
    }
    let proxy = scene.proxy.url();
    assert_eq!(said_by_node(code, &proxy).await, "outer\nouter");
    eventually("both were granted", async || scene.answered("PUT") == [201, 201]).await;
    scene.is_free().await;
    scene.look.get("/once/k").send().await.expect_problem(404, "not-begun");
}

/// As those do that go through a proxy.
#[tokio::test(flavor = "multi_thread")]
async fn in_javascript_an_answer_is_in_doubt_also_on_a_connection_that_an_agent_made_before() {
    let scene = Scene::start().await;
    scene.proxy.expect("PUT", Fate::CutAfter);
    let code = "import { once } from 'node:events';\n\
        import http from 'node:http';\n\
        import net from 'node:net';\n\
        import { Fencepost } from './fencepost.mjs';\n\
        class Early extends http.Agent {\n  \
          createConnection(options, done) {\n    \
            const socket = net.connect(options);\n    \
            once(socket, 'connect').then(() => done(null, socket), done);\n  \
          }\n\
        }\n\
        http.globalAgent = new Early({ keepAlive: true });\n\
        const lease = await new Fencepost().acquire('k', { ttlMs: 300_000 });\n\
        lease.check();\n\
        console.log(lease.fencingToken);\n\
        process.exit();\n";
    let said = said_by_node(code, &scene.proxy.url()).await;
    let held = scene.look.get("/locks/k").send().await.expect(200);
    assert_eq!(said, held.fencing_token().to_string());
    eventually("it has asked twice", async || scene.answered("PUT") == [201, 200]).await;
}

/// Node makes a timer of 1 ms of what is longer than 24 days.
#[tokio::test(flavor = "multi_thread")]
async fn in_javascript_times_may_be_longer_than_a_timer() {
    let gateway = Gateway::start(&["--store", "memory:", "--max-ttl", "2400h"]).await;
    let code = "import { Fencepost } from './fencepost.mjs';\n\
        const endless = { retryForMs: Infinity, tryForMs: Infinity };\n\
        const work = () => new Promise((end) => setTimeout(end, 1000));\n\
        await new Fencepost(undefined, endless).hold('k', { ttlMs: 80 * 86_400_000 }, work);\n";
    assert_eq!(said_by_node(code, &url(&gateway)).await, "");
    eventually("it is released", async || answered(&gateway, "DELETE") == [204]).await;
    assert!(answered(&gateway, "PATCH").is_empty());
}

/// As it does where it comes during a request.
#[tokio::test(flavor = "multi_thread")]
async fn in_javascript_a_signal_gives_its_reason_also_in_a_pause() {
    let busy = answer("503 Service Unavailable", "").replace("connection", "retry-after: 30\r\nconnection");
    let gateway = Pretender::start(move |_| busy.clone()).await;
    let code = "import { Fencepost } from './fencepost.mjs';\n\
        const options = { signal: AbortSignal.timeout(1000) };\n\
        await new Fencepost().acquire('k', options).catch((error) => console.log(error.name));\n";
    assert_eq!(said_by_node(code, &gateway.url).await, "TimeoutError");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_javascript_the_signal_of_acquire_ends_with_it() {
    let gateway = gateway().await;
    let code = "import { Fencepost } from './fencepost.mjs';\n\
        const gives_up = new AbortController();\n\
        const lease = await new Fencepost().acquire('k', { signal: gives_up.signal });\n\
        gives_up.abort();\n\
        lease.check();\n\
        console.log('held');\n";
    assert_eq!(said_by_node(code, &url(&gateway)).await, "held");
}
