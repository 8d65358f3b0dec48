//! Nobody can kill anything while `run` itself is stopped. Then the fence protects; and waking, killing comes first.

use std::process::Command;
use std::time::{Duration, Instant};

use super::kit::{Scene, is_alive, is_held, left_of, requests, waiters};
use kit::{Client, Gateway, eventually, fresh_token};

/// A gateway whose answers do not wait for a disk: a short lease would be over before it is told of.
async fn in_memory() -> Gateway {
    Gateway::start(&["--store", "memory:"]).await
}

/// A resource that claims, and writers that go on writing whether or not it refuses them.
struct Resource {
    scene: Scene,
}

impl Resource {
    fn new(scene: Scene) -> Self {
        let resource = Self { scene };
        resource.sql(
            "CREATE TABLE resource (fence INTEGER NOT NULL); INSERT INTO resource VALUES (0);
             CREATE TABLE written (at INTEGER PRIMARY KEY, fence INTEGER NOT NULL)",
        );
        // It claims before its first write, writes again and again, and notes what it was refused.
        let writer = "sql() { sqlite3 -cmd '.timeout 20000' data \"$1\"; }
            N=$FENCING_TOKEN
            sql \"UPDATE resource SET fence=$N WHERE fence<=$N\"
            echo $$ >$1.pid.new; mv $1.pid.new $1.pid
            n=0
            while [ $n -lt 1500 ]; do
                n=$((n+1))
                sql \"BEGIN IMMEDIATE;
                    INSERT INTO written (fence) SELECT $N FROM resource WHERE fence=$N;
                    SELECT changes(); COMMIT\" | grep -q 1 && echo >>$1.done || echo >>$1.refused
                sleep 0.02
            done";
        std::fs::write(resource.scene.path("writer"), writer).unwrap();
        resource
    }

    fn sql(&self, sql: &str) -> String {
        let database = self.scene.path("data");
        let args = ["-cmd", ".timeout 20000", database.to_str().unwrap(), sql];
        let output = Command::new("sqlite3").args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_stopped_beyond_its_lease_kills_at_once_and_no_stale_write_was_taken() {
    let gateway = in_memory().await;
    let client = Client::new(gateway.address);
    let resource = Resource::new(Scene::on(&gateway));
    let scene = &resource.scene;
    let first = scene.start(&["--ttl", "2s", "k", "--", "sh", "writer", "first"]);
    let first_pid = scene.number("first.pid").await;
    scene.says("first.done", "\n").await;
    first.signal("STOP");
    eventually("its lease is over", async || !is_held(&client, "k").await).await;
    assert!(is_alive(first_pid), "nobody can have killed it");

    let second = scene.start(&["k", "--", "sh", "writer", "second"]);
    scene.number("second.pid").await;
    scene.says("second.done", "\n\n\n").await;
    // It goes on trying, and is refused: that is what the fence is for.
    scene.says("first.refused", "\n\n\n").await;
    assert!(is_alive(first_pid));

    let said_before = requests(&gateway).len();
    first.signal("CONT");
    let woken_at = Instant::now();
    eventually("it is dead", async || !is_alive(first_pid)).await;
    assert!(woken_at.elapsed() < Duration::from_secs(2), "{:?}", woken_at.elapsed());
    first.end().await.expect_line(76, &["\"k\"", "stood still"]);
    // It was killed before the gateway was asked anything: of the first, only the last word is new.
    let said: Vec<_> = requests(&gateway).split_off(said_before);
    assert!(
        said.iter()
            .all(|request| request.status != 404 && request.status != 409 || request.method == "DELETE")
    );

    second.signal("TERM");
    second.end().await.expect_silent(143);
    let fences = resource.sql("SELECT fence FROM written ORDER BY at");
    let fences: Vec<u64> = fences.lines().map(|line| line.parse().unwrap()).collect();
    assert!(fences.is_sorted(), "a stale write was taken");
    assert_ne!(fences.first(), fences.last());
}

/// Its answer was there all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_stopped_before_its_first_answer_asks_again() {
    let gateway = in_memory().await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let [lock, work] = [fresh_token(), fresh_token()];
    client.put("/locks/k?ttl=5m").token(&lock).send().await.expect(201);
    client.put("/once/k?ttl=5m").token(&work).send().await.expect(201);
    let args = ["--gateway-wait", "0s", "--ttl", "1s", "k", "--", "true"];
    let all = [("run", &args[..]), ("once", &args), ("acquire", &args[..5])];
    let all = all.map(|(name, args)| scene.launch(scene.command_of(name, args)));
    eventually("all of them wait", async || {
        let metrics = client.get("/metrics").send().await.body;
        let is_work_waited_for = String::from_utf8_lossy(&metrics).contains("fencepost_once_waiters 1");
        is_work_waited_for && waiters(&client).await == 2
    })
    .await;
    all.iter().for_each(|waiting| waiting.signal("STOP"));
    // Their first requests may take two seconds, and a busy machine may add one.
    tokio::time::sleep(Duration::from_secs(4)).await;
    all.iter().for_each(|waiting| waiting.signal("CONT"));
    client.delete("/locks/k").token(&lock).send().await.expect(204);
    client.delete("/once/k?clean=true").token(&work).send().await.expect(204);
    for waiting in all {
        waiting.end().await.expect_silent(0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_stopped_for_less_than_its_lease_goes_on() {
    let gateway = in_memory().await;
    let (scene, client) = (Scene::on(&gateway), Client::new(gateway.address));
    let script = "echo >ready; while [ ! -e over ]; do sleep 0.02; done; exit 2";
    let running = scene.start_script(&["--ttl", "6s"], script);
    eventually("the command runs", async || scene.path("ready").exists()).await;
    running.signal("STOP");
    // So late the command would have been asked to end, if a renewal had failed.
    eventually("little is left", async || left_of(&client).await < Duration::from_millis(2300)).await;
    running.signal("CONT");
    eventually("it is renewed", async || left_of(&client).await > Duration::from_secs(3)).await;
    std::fs::write(scene.path("over"), "").unwrap();
    running.end().await.expect_silent(2);
}
