//! A disk without room: what is asked for is refused with the reason, what was granted stays, and no restart is needed.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost::store::embedded::{EmbeddedSettings, EmbeddedStore};
use futures_util::future::join_all;
use tempfile::TempDir;

use kit::gateway::run;
use kit::metrics::Scrape;
use kit::{Answer, Client, Gateway, eventually, fresh_token};

use super::Namespace;
use super::clock::TestClock;

mod waiters;

/// What the operating system calls it.
const REASON: &str = "No space left on device";
/// What a file in memory takes room by.
const PAGE_BYTES: u64 = 4_096;
/// The longest lease that is asked for here.
const HOUR_MS: u64 = 3_600_000;

/// A file system of 4 MiB, in a namespace of its own.
struct SmallDisk {
    root: PathBuf,
    _namespace: Namespace,
    _mount_point: TempDir,
}

impl SmallDisk {
    fn new() -> Self {
        let mount_point = tempfile::tempdir().unwrap();
        let mount = r#"mount -t tmpfs -o size=4m fencepost "$0""#;
        let namespace = Namespace::with(mount, &[mount_point.path()]);
        let root = namespace.path(mount_point.path());
        Self { root, _namespace: namespace, _mount_point: mount_point }
    }

    /// A gateway on a file of this disk; the error is what it said if it did not start.
    async fn try_gateway(&self) -> Result<Gateway, Vec<String>> {
        let store = format!("file:{}", self.root.join("locks.redb").display());
        // Slowness is no fault here.
        Gateway::try_start(&["--store", &store, "--store-timeout", "20s"]).await
    }

    async fn gateway(&self) -> Gateway {
        self.try_gateway().await.unwrap_or_else(|said| panic!("it ended: {said:#?}"))
    }

    /// Whether `check` says that the disk is full, and that the store cannot be used for that.
    fn is_full_by_check(&self) -> bool {
        self.check().contains("cannot be used now: the disk is full: a start, or the next change, may")
    }

    /// What `check` says. Only a full disk has it end with 1.
    fn check(&self) -> String {
        let output = run(&["check", "--store", &format!("file:{}", self.root.join("locks.redb").display())]);
        let page = String::from_utf8(output.stdout).unwrap();
        assert_eq!(page.contains("the disk is full"), output.status.code() == Some(1), "{page}");
        page
    }

    fn filler(&self) -> PathBuf {
        self.root.join("filler")
    }

    /// Leaves room for so many more pages.
    fn fill_but(&self, pages: u64) {
        let mut filler = OpenOptions::new().create(true).append(true).open(self.filler()).unwrap();
        let page = vec![0; usize::try_from(PAGE_BYTES).unwrap()];
        let full = loop {
            if let Err(error) = filler.write_all(&page) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
        filler.set_len(filler.metadata().unwrap().len() - pages * PAGE_BYTES).unwrap();
    }

    fn make_room(&self) {
        // Cut off first: a process that another test has just forked may have the file open for a moment, and what is
        // open keeps its room.
        drop(File::create(self.filler()).unwrap());
        std::fs::remove_file(self.filler()).unwrap();
    }
}

/// A lock that somebody asked for, and the number that they were told.
#[derive(Clone, Debug)]
struct Claim {
    path: String,
    token: String,
    number: u64,
}

impl Claim {
    /// Long names fill a file quickly.
    fn new() -> Self {
        Self { path: format!("/locks/{:0>400}", fresh_token()), token: fresh_token(), number: 0 }
    }

    /// Asks for it, and notes the number if it is granted.
    async fn put(&mut self, client: &Client) -> Answer {
        let put = client.put(&format!("{}?ttl=1h&owner={:o>256}", self.path, ""));
        let answer = put.token(&self.token).send().await;
        if answer.status == 201 {
            self.number = answer.fencing_token();
        }
        answer
    }

    /// Has the holder look.
    async fn is_yours(&self, client: &Client) {
        let look = client.get(&self.path).token(&self.token).send().await.expect(200);
        assert_eq!((look.fencing_token(), look.json()["yours"].as_bool()), (self.number, Some(true)));
    }

    /// Releases or renews it, in one way or another. Says whether that was done, and what then becomes of it.
    async fn change(&self, way: usize, client: &Client) -> (bool, Fate) {
        let longer = format!("{}?ttl=2h", self.path);
        let (call, done, then) = match way % 3 {
            0 => (client.delete(&self.path), 204, Fate::Free),
            1 => (client.patch(&longer), 200, Fate::HeldForLonger),
            _ => (client.put(&longer), 200, Fate::HeldForLonger),
        };
        let answer = call.token(&self.token).send().await;
        if answer.status == done {
            return (true, then);
        }
        refused_for_want_of_room(answer);
        (false, then)
    }

    /// What became of it, for all to see. If it is held, then by the number that was told.
    async fn fate(&self, client: &Client) -> Fate {
        let look = client.get(&self.path).send().await;
        if look.status == 404 {
            return Fate::Free;
        }
        let look = look.expect(200);
        assert_eq!(look.fencing_token(), self.number, "{self:?}");
        match look.json()["expires_in_ms"].as_u64().unwrap() {
            0..=HOUR_MS => Fate::Held,
            _ => Fate::HeldForLonger,
        }
    }
}

/// What became of a lock that was asked for, for an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Free,
    Held,
    HeldForLonger,
}

async fn all_are_held(client: &Client, claims: &[Claim]) {
    for claim in claims {
        assert_eq!(claim.fate(client).await, Fate::Held, "{claim:?}");
    }
}

/// Takes locks until one is refused, which it must be for want of room; the last of them is that one.
async fn take_until_refused(client: &Client) -> (Vec<Claim>, Claim) {
    let mut granted = Vec::new();
    // The disk has not this many pages.
    for _ in 0..1_024 {
        let mut claim = Claim::new();
        let answer = claim.put(client).await;
        if answer.status != 201 {
            refused_for_want_of_room(answer);
            return (granted, claim);
        }
        granted.push(claim);
    }
    panic!("the disk is never full");
}

/// Asks for one lock after the other, and returns those for which there was room after all.
async fn ask_until(client: &Client, enough: &AtomicBool) -> Vec<Claim> {
    let mut granted = Vec::new();
    while !enough.load(Ordering::SeqCst) {
        let mut claim = Claim::new();
        match claim.put(client).await {
            answer if answer.status == 201 => granted.push(claim),
            answer => refused_for_want_of_room(answer),
        }
    }
    granted
}

#[track_caller]
fn refused_for_want_of_room(answer: Answer) {
    let problem = answer.expect_problem(503, "store-unavailable").json();
    assert!(problem["detail"].as_str().unwrap().contains(REASON), "{problem}");
}

#[track_caller]
fn ended_for_want_of_room(started: Result<Gateway, Vec<String>>) {
    let mut said = started.err().expect("it has started");
    // The commit for which there was no room is in the file in part.
    said.retain(|line| !line.contains("the newest commit in the file cannot be read"));
    assert!(said.len() == 1 && said[0].contains(REASON), "{said:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_told_and_loses_nothing_and_room_is_found_without_a_restart() {
    let disk = SmallDisk::new();
    let gateway = disk.gateway().await;
    let client = Client::new(gateway.address);
    let (mut held, mut known) = (Vec::new(), Vec::new());
    for round in 0..3 {
        for _ in 0..10 {
            let mut claim = Claim::new();
            claim.put(&client).await.expect(201);
            // From here on its holder can look without a change to the file.
            claim.is_yours(&client).await;
            known.push(held.len());
            held.push(claim);
        }
        disk.fill_but(round);
        let (granted, mut refused) = take_until_refused(&client).await;
        held.extend(granted);
        // However many go on asking: whoever looks sees what there is.
        let seen = AtomicBool::new(false);
        let askers = join_all((0..8).map(|_| ask_until(&client, &seen)));
        let look = async {
            all_are_held(&client, &held).await;
            for number in &known {
                held[*number].is_yours(&client).await;
            }
            seen.store(true, Ordering::SeqCst);
        };
        let (granted, ()) = tokio::join!(askers, look);
        held.extend(granted.into_iter().flatten());
        assert_eq!(refused.fate(&client).await, Fate::Free);
        client.get("/healthz").send().await.expect(200);
        // Nobody else may take the file over meanwhile.
        let another = disk.try_gateway().await.err().expect("it has started");
        assert!(another[0].contains("in use by another process"), "{another:?}");

        disk.make_room();
        refused.put(&client).await.expect(201);
        client.get("/readyz").send().await.expect(200);
        assert!(held.iter().all(|earlier| earlier.number < refused.number));
        held.push(refused);
        all_are_held(&client, &held).await;
    }
}

/// Wherever on its way to disk a batch runs out of room, in one more page for its rows, in a file that has to grow, in
/// what the database keeps of itself: an answer says what is there, and says it still after a crash.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_last_page_is_wanted_for_the_answer_is_true() {
    let disk = SmallDisk::new();
    let mut gateway = disk.gateway().await;
    let (mut held, mut last, mut unready) = (Vec::new(), 0, 0);
    for pages in 0..24 {
        let client = Client::new(gateway.address);
        disk.fill_but(pages);
        let bursts = join_all((0..6).map(|_| take_until_refused(&client))).await;
        let (granted, mut refused): (Vec<_>, Vec<_>) = bursts.into_iter().unzip();
        held.extend(granted.into_iter().flatten());
        for claim in &refused {
            assert_eq!(claim.fate(&client).await, Fate::Free, "{claim:?} with {pages} pages");
        }
        // It is ready where at least an empty batch finds room.
        let ready = client.get("/readyz").send().await;
        if ready.status != 200 {
            refused_for_want_of_room(ready);
            unready += 1;
        }
        if pages % 2 == 0 {
            gateway.kill();
            disk.make_room();
            gateway = disk.gateway().await;
        } else {
            disk.make_room();
        }
        let client = Client::new(gateway.address);
        client.get("/readyz").send().await.expect(200);
        all_are_held(&client, &held).await;
        last = held.iter().map(|claim| claim.number).fold(last, u64::max);
        for claim in &mut refused {
            // Nothing happened to that token: it is as good as new.
            claim.put(&client).await.expect(201);
            assert!(claim.number > last, "{claim:?} after {last}");
        }
        held.extend(refused);
    }
    assert!(unready > 0, "it was ready on a full disk each time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_shows_in_the_numbers_until_there_is_room() {
    let disk = SmallDisk::new();
    let gateway = disk.gateway().await;
    let client = Client::new(gateway.address);
    let is_ready = async || Scrape::of(gateway.address).await.get("fencepost_ready") == 1.0;
    assert!(is_ready().await);
    disk.fill_but(0);
    take_until_refused(&client).await;
    eventually("it is not ready", async || !is_ready().await).await;
    disk.make_room();
    Claim::new().put(&client).await.expect(201);
    eventually("it is ready", async || is_ready().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_and_renewals_on_a_full_disk_are_answered_truly() {
    let disk = SmallDisk::new();
    let mut gateway = disk.gateway().await;
    let client = Client::new(gateway.address);
    let mut claims = Vec::new();
    for _ in 0..30 {
        let mut claim = Claim::new();
        claim.put(&client).await.expect(201);
        claims.push(claim);
    }
    let (mut known, mut refused) = (Vec::new(), 0);
    disk.fill_but(0);
    for (number, claim) in claims.into_iter().enumerate() {
        // The first ones may find room within the file.
        if number == 12 {
            let (granted, _) = take_until_refused(&client).await;
            known.extend(granted.into_iter().map(|claim| (claim, Fate::Held)));
        }
        let (done, then) = claim.change(number, &client).await;
        let fate = if done { then } else { Fate::Held };
        refused += u32::from(!done);
        assert_eq!(claim.fate(&client).await, fate, "{claim:?}");
        known.push((claim, fate));
    }
    assert!(refused > 0, "there was room for all");

    gateway.kill();
    disk.make_room();
    let gateway = disk.gateway().await;
    let client = Client::new(gateway.address);
    for (number, (claim, fate)) in known.into_iter().enumerate() {
        assert_eq!(claim.fate(&client).await, fate, "{claim:?}");
        if fate == Fate::Held {
            let (done, then) = claim.change(number, &client).await;
            assert_eq!((done, claim.fate(&client).await), (true, then));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_full_disk_works_or_says_why_and_harms_nothing() {
    let disk = SmallDisk::new();
    // No store yet, and no room for one.
    disk.fill_but(0);
    ended_for_want_of_room(disk.try_gateway().await);
    assert!(disk.is_full_by_check());
    disk.make_room();
    assert!(!disk.is_full_by_check());
    let mut gateway = disk.gateway().await;
    let mut held = Vec::new();
    for pages in 0..8 {
        disk.fill_but(pages);
        let (granted, _) = take_until_refused(&Client::new(gateway.address)).await;
        held.extend(granted);
        gateway.kill();
        match disk.try_gateway().await {
            Ok(started) => all_are_held(&Client::new(started.address), &held).await,
            ended => {
                ended_for_want_of_room(ended);
                assert!(disk.is_full_by_check());
            }
        }
        disk.make_room();
        assert!(!disk.is_full_by_check());
        gateway = disk.gateway().await;
        all_are_held(&Client::new(gateway.address), &held).await;
    }
}

/// Their ends are counted anew then, so that all records are written.
#[tokio::test(flavor = "multi_thread")]
async fn check_warns_of_a_disk_on_which_a_start_after_the_machine_has_restarted_finds_no_room() {
    let (disk, clock) = (SmallDisk::new(), TestClock::new());
    let mut gateway = disk.gateway().await;
    for _ in 0..400 {
        Claim::new().put(&Client::new(gateway.address)).await.expect(201);
    }
    gateway.kill();
    let is_warned_of =
        || disk.check().contains("warning: the disk may have too little room for a start after");
    assert!(!is_warned_of());
    let mut ended = 0;
    for pages in (16..).step_by(8) {
        disk.fill_but(pages);
        let is_told = is_warned_of();
        clock.reboot();
        let path = disk.root.join("locks.redb");
        let started = EmbeddedStore::open(&path, EmbeddedSettings::default(), Arc::new(clock.clone()));
        disk.make_room();
        let Err(error) = started else { break };
        assert!(error.to_string().contains(REASON), "{error}");
        assert!(is_told, "{pages} pages");
        ended += 1;
    }
    assert!(ended > 0, "there was room for all");
    assert!(!is_warned_of());
}

/// It is on no disk that the machine keeps over a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_lies_in_memory_is_warned_of_at_the_start_and_in_check() {
    let disk = SmallDisk::new();
    let warns = |line: &str| line.contains("WARN") && line.contains("the file lies in memory");
    let store = format!("file:{}", disk.root.join("locks.redb").display());
    let check = || {
        let page = String::from_utf8(run(&["check", "--store", &store]).stdout).unwrap();
        assert!(page.contains("warning: the file lies in memory"), "{page}");
        assert!(page.contains("holds, unless the machine restarts (it forgets all locks)"), "{page}");
        assert!(page.ends_with("It can be used.\n") && !page.contains("is on disk before"), "{page}");
    };
    // Of a file that is yet to be made, and of one that is there.
    check();
    disk.gateway().await.logs("it is said at the start", warns).await;
    check();
}

/// A look needs no room, but it needs the file: who moves it to a larger disk starts another gateway there.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_nothing_is_told_of_a_file_that_was_moved_away() {
    let disk = SmallDisk::new();
    let gateway = disk.gateway().await;
    let client = Client::new(gateway.address);
    disk.fill_but(0);
    let (granted, _) = take_until_refused(&client).await;
    all_are_held(&client, &granted).await;
    std::fs::rename(disk.root.join("locks.redb"), disk.root.join("aside")).unwrap();
    eventually("it tells nothing more", async || client.get("/locks/any").send().await.status == 503).await;
    std::fs::rename(disk.root.join("aside"), disk.root.join("locks.redb")).unwrap();
    disk.make_room();
    Claim::new().put(&client).await.expect(201);
    all_are_held(&client, &granted).await;
}
