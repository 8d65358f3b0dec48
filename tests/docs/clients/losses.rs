//! When clients say that a lease is lost: as soon as they can know, whatever else is to be done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::answers::{GRANT, Pretender, answer};
use super::workshop::{self, Kind};
use super::{Scene, gateway, url};
use kit::eventually;
use kit::proxy::Fate;

with_each!(
    super::Kind::EXAMPLES;
    a_lease_that_nobody_can_renew_is_lost_in_time,
    a_loss_is_told_though_the_release_is_not_answered,
    the_loss_of_a_lease_that_is_shorter_than_asked_is_told_when_it_ends,
    of_several_locks_none_is_left_by_an_answer_that_was_lost,
    an_answer_that_asks_for_a_long_pause_costs_no_lease,
    after_a_renewal_that_is_told_of_a_loss_the_lease_is_over,
);

/// Another thread may still look at the lease, while the next holder works.
async fn after_a_renewal_that_is_told_of_a_loss_the_lease_is_over(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    for wish in ["acquire k 300 0", "both k j 300 0"] {
        assert!(client.does(wish).await.starts_with("granted "));
        assert_eq!(client.does("check").await, "held");
        scene.look.delete("/locks/k?force=true").send().await.expect(204);
        let next = scene.look.put("/locks/k?ttl=5m").send().await.expect(201).token();
        assert_eq!(client.does("renew 300").await, "lost");
        assert_eq!(client.does("check").await, "lost");
        scene.look.delete("/locks/k").token(&next).send().await.expect(204);
    }
}

/// As a proxy says it for the moment in which its gateway is replaced.
async fn an_answer_that_asks_for_a_long_pause_costs_no_lease(kind: Kind) {
    let busy = answer("503 Service Unavailable", "").replace("connection", "retry-after: 30\r\nconnection");
    let patches = Arc::new(AtomicUsize::new(0));
    let counts = patches.clone();
    let gateway = Pretender::start(move |method| match method {
        "PATCH" if counts.fetch_add(1, Ordering::SeqCst) == 0 => busy.clone(),
        _ => answer("200 OK", &GRANT.replace("300000", "9000")),
    });
    let gateway = gateway.await;
    let mut client = kind.start(&gateway.url).await;
    client.is_granted("hold k 9 0").await;
    eventually("it was asked to wait", async || patches.load(Ordering::SeqCst) > 0).await;
    let asked = Instant::now();
    eventually("it asks again", async || patches.load(Ordering::SeqCst) > 1).await;
    // The lease ends six seconds after the answer.
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    assert_eq!(client.does("check").await, "held");
}

/// Its work is told to end, and may take a while for that.
#[tokio::test(flavor = "multi_thread")]
async fn in_go_a_context_that_has_ended_ends_no_renewal() {
    let scene = Scene::start().await;
    let mut client = scene.client(Kind::Go).await;
    let number = client.is_granted("hold k 3 0").await;
    assert_eq!(client.does("wind-down").await, "winds down");
    let ends = Instant::now() + Duration::from_secs(7);
    while Instant::now() < ends {
        assert_eq!(scene.look.get("/locks/k").send().await.expect(200).fencing_token(), number);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(client.does("leave").await, "released");
    scene.is_free().await;
}

async fn a_lease_that_nobody_can_renew_is_lost_in_time(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    client.is_granted("hold k 3 0").await;
    scene.proxy.set_policy(|_| Fate::LoseAnswers);
    let begun = Instant::now();
    assert_eq!(client.does("lost").await, "lost");
    // What is over needs no release: it is tried once.
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
}

async fn a_loss_is_told_though_the_release_is_not_answered(kind: Kind) {
    let scene = Scene::start().await;
    let mut client = scene.client(kind).await;
    client.is_granted("hold k 6 0").await;
    let releases = Arc::<AtomicUsize>::default();
    let counts = releases.clone();
    scene.proxy.set_policy(move |message| {
        if !message.starts_with(b"DELETE") {
            return Fate::Pass;
        }
        counts.fetch_add(1, Ordering::SeqCst);
        Fate::HalfOpen
    });
    // The gateway that knows nothing of the lock says so, and falls silent.
    let forgetful = gateway().await;
    scene.proxy.set_target(forgetful.address.port());
    scene.proxy.sever();
    assert_eq!(client.does("lost").await, "lost");
    // One try, and perhaps another one that an early timer lets begin. All that it may take would be ten.
    let releases = releases.load(Ordering::SeqCst);
    assert!((1..=2).contains(&releases), "{releases}");
}

async fn the_loss_of_a_lease_that_is_shorter_than_asked_is_told_when_it_ends(kind: Kind) {
    let grant = GRANT.replace("300000", "3000");
    let gateway = Pretender::start(move |method| match method {
        "PUT" => answer("200 OK", &grant),
        _ => {
            answer("404 Not Found", r#"{"type":"/problems/not-held","title":"t","status":404,"detail":"d"}"#)
        }
    });
    let gateway = gateway.await;
    let mut client = kind.start(&gateway.url).await;
    // A third of the ttl is longer than a test waits for an answer.
    client.is_granted("hold k 100 0").await;
    assert_eq!(client.does("lost").await, "lost");
}

/// What this program says, in which `start` and `fails` may be the `start` of threads.
async fn python_says(code: &str) -> String {
    let before = "import asyncio, threading, time\n\
        from fencepost import Fencepost\n\
        from fencepost_async import AsyncFencepost, Lost, Unavailable\n\
        start = threading.Thread.start\n\
        def fails(thread): raise RuntimeError(\"can't start new thread\")\n";
    let (gateway, script) = (gateway().await, tempfile::NamedTempFile::new().unwrap());
    std::fs::write(script.path(), format!("{before}{code}")).unwrap();
    let mut command = workshop::bare_python(script.path().to_str().unwrap());
    workshop::run(command.env("FENCEPOST_URL", url(&gateway))).await.trim().to_owned()
}

/// The thread has the lock in time, and the task hears of it too late.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_async_python_that_ends_while_the_event_loop_is_blocked_is_none() {
    let code = "async def main():\n  \
          asked = asyncio.create_task(AsyncFencepost().acquire('k', ttl_s=.2))\n  \
          await asyncio.sleep(0)\n  \
          time.sleep(3)\n  \
          try: await asked\n  \
          except Unavailable: print('unavailable')\n\
        asyncio.run(main())\n";
    assert_eq!(python_says(code).await, "unavailable");
}

/// To ask for a renewal would stop the event loop, and with it all other tasks.
#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_a_lease_is_told_where_async_python_has_no_thread_left_to_renew_it() {
    let code = "async def main():\n  \
          async with AsyncFencepost().hold('k', ttl_s=1) as lease:\n    \
            threading.Thread.start = fails\n    \
            await asyncio.wait_for(lease.lost.wait(), 15)\n    \
            threading.Thread.start = start\n\
        try: asyncio.run(main())\n\
        except Lost: print('told')\n";
    assert_eq!(python_says(code).await, "told");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_where_python_has_no_thread_left() {
    let code = "with Fencepost().hold('k', ttl_s=3) as lease:\n  \
          threading.Thread.start = fails\n  \
          time.sleep(5)\n  \
          lease.check()\n\
        print('released')\n";
    assert_eq!(python_says(code).await, "released");
}

/// Its lock makes another error of it. Else the request is sent twice, and the work begins.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_handler_of_a_signal_raises_while_python_starts_a_thread_ends_the_request() {
    let code = "def interrupted(thread):\n  \
          threading.Thread.start = start\n  \
          start(thread)\n  \
          try: raise KeyboardInterrupt\n  \
          finally: raise RuntimeError('release unlocked lock')\n\
        threading.Thread.start = interrupted\n\
        try: Fencepost().acquire('k', ttl_s=30); print('granted')\n\
        except KeyboardInterrupt: print('interrupted')\n";
    assert_eq!(python_says(code).await, "interrupted");
}

/// Else the next one does it again.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_is_done_is_stored_where_python_has_no_thread_left() {
    let blocking = "def work(place):\n  \
          threading.Thread.start = fails\n  \
          return b'paid'\n\
        Fencepost().once('k', work)\n\
        threading.Thread.start = start\n\
        print(Fencepost().once('k', work).was_replayed)\n";
    let with_tasks = "async def work(place):\n  \
          threading.Thread.start = fails\n  \
          return b'paid'\n\
        async def main():\n  \
          await AsyncFencepost().once('k', work)\n  \
          threading.Thread.start = start\n  \
          print((await AsyncFencepost().once('k', work)).was_replayed)\n\
        asyncio.run(main())\n";
    for code in [blocking, with_tasks] {
        assert_eq!(python_says(code).await, "True", "{code}");
    }
}

/// Else, with `takeover=False`, a person would have to find out that nothing was done.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_does_not_begin_as_python_has_no_thread_left_is_as_if_it_never_began() {
    let code = "threading.Thread.start = fails\n\
        try: Fencepost().once('k', lambda place: 'begun')\n\
        except RuntimeError: threading.Thread.start = start\n\
        print(Fencepost().once('k', lambda place: str(place.earlier), takeover=False).body)\n";
    assert_eq!(python_says(code).await, "b'0'");
}

/// The first answer is lost, and one of the locks with it. The other is not left behind.
async fn of_several_locks_none_is_left_by_an_answer_that_was_lost(kind: Kind) {
    let scene = Scene::start().await;
    let (puts, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, passes) = (puts.clone(), is_over.clone());
    scene.proxy.set_policy(move |message| match message.starts_with(b"PUT") {
        true if count.fetch_add(1, Ordering::SeqCst) == 0 => Fate::CutAfter,
        true if !passes.load(Ordering::SeqCst) => Fate::CutBefore,
        _ => Fate::Pass,
    });
    let mut client = scene.client(kind).await;
    client.begins("both j k 300 0").await;
    let held = async |key: &str| scene.look.get(&format!("/locks/{key}")).send().await.status == 200;
    eventually("it asks again", async || puts.load(Ordering::SeqCst) > 1 && held("k").await).await;
    scene.look.delete("/locks/k?force=true").send().await.expect(204);
    scene.look.put("/locks/k?ttl=5m").send().await.expect(201);
    is_over.store(true, Ordering::SeqCst);
    assert_eq!(client.says().await, "busy");
    assert!(!held("j").await && held("k").await);
}
