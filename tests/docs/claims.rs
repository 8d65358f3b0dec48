//! Leases that end under their holders for a minute: the resource of the page on SQL loses no update, and two
//! that do without its claim show that this test would notice.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::pages::file;
use kit::resource::Discipline;
use kit::{Client, PATIENCE, Stage, fresh_token, on_each_store, seed};

const LENGTH: Duration = Duration::from_secs(60);
const CLIENTS: usize = 16;
const TTL_MS: u64 = 100;
/// After so many lost updates a resource has shown that it is not safe, and its clients stop.
const ENOUGH_LOST: usize = 5;

on_each_store!(a_resource_loses_updates_unless_it_claims);

/// The SQL of the steps, with the names of the page's parameters in it.
struct Statements {
    claim: Option<String>,
    read: String,
    write: String,
}

/// One row, under one lock.
struct Account<'a> {
    discipline: Discipline,
    statements: Statements,
    client: Client,
    database: &'a Path,
    end: Instant,
    tally: Tally,
}

/// What the clients of an account know.
#[derive(Default)]
struct Tally {
    grants: Cell<u64>,
    refused_claims: Cell<u64>,
    refused_writes: Cell<u64>,
    /// How often a holder learned at its release that the lease had ended.
    overslept: Cell<u64>,
    /// The acknowledged deposits: the number that each had, and the balance that it had read.
    deposits: RefCell<Vec<(u64, u64)>>,
}

async fn a_resource_loses_updates_unless_it_claims(stage: Stage) {
    let seed = seed();
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("bank.db");
    let mut sql = Sqlite::open(&database);
    sql.ask(&format!("{}; SELECT 1", one_line(&file("account.sql")))).await;
    let end = Instant::now() + LENGTH;
    let accounts =
        [Discipline::Claim, Discipline::CheckAtWrite, Discipline::Unfenced].map(|discipline| Account {
            discipline,
            statements: Statements::of(discipline),
            client: stage.client(),
            database: &database,
            end,
            tally: Tally::default(),
        });
    for account in &accounts {
        let id = account.id();
        sql.ask(&format!("INSERT INTO account (id, balance) VALUES ('{id}', 0); SELECT changes()")).await;
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let clients = accounts.iter().flat_map(|account| [account; CLIENTS]);
    let clients = clients.map(|account| account.use_until_the_end(StdRng::seed_from_u64(rng.random())));
    // All in this one task, so that the first that panics ends the test.
    futures_util::future::join_all(clients).await;
    for account in &accounts {
        account.judge(&mut sql).await;
    }
}

impl Account<'_> {
    fn id(&self) -> String {
        format!("{:?}", self.discipline)
    }

    async fn use_until_the_end(&self, mut rng: StdRng) {
        let mut sql = Sqlite::open(self.database);
        let lock = format!("/locks/account-{}", self.id());
        while Instant::now() < self.end && !self.has_lost_enough() {
            let token = fresh_token();
            let answer = self.client.put(&format!("{lock}?ttl={TTL_MS}ms")).token(&token).send().await;
            // A machine under load may need longer than the ttl for a grant: that is a 503.
            if matches!(answer.status, 423 | 503) {
                tokio::time::sleep(Duration::from_millis(rng.random_range(20..80))).await;
                continue;
            }
            let number = answer.expect(201).fencing_token();
            count(&self.tally.grants);
            self.deposit_one(number, &mut sql, &mut rng).await;
            let released = self.client.delete(&lock).token(&token).send().await;
            match released.status {
                404 | 409 => count(&self.tally.overslept),
                status => assert!(matches!(status, 204 | 503), "{released:?}"),
            }
        }
    }

    /// The steps of the recipe, each after a pause; ends where the resource refuses one.
    async fn deposit_one(&self, number: u64, sql: &mut Sqlite, rng: &mut StdRng) {
        pause(rng).await;
        if let Some(claim) = &self.statements.claim {
            if sql.ask(&self.fill_in(claim, number, 0)).await != 1 {
                return count(&self.tally.refused_claims);
            }
            pause(rng).await;
        }
        let balance = sql.ask(&self.fill_in(&self.statements.read, number, 0)).await;
        pause(rng).await;
        if sql.ask(&self.fill_in(&self.statements.write, number, balance + 1)).await != 1 {
            return count(&self.tally.refused_writes);
        }
        self.tally.deposits.borrow_mut().push((number, balance));
    }

    /// A statement of the page with its parameters bound. Changes answer with how many rows they changed.
    fn fill_in(&self, statement: &str, number: u64, new_balance: u64) -> String {
        let bound = statement
            .replace(":balance", &new_balance.to_string())
            .replace(":id", &format!("'{}'", self.id()))
            .replace(":fence", &number.to_string());
        assert!(!bound.contains(':'), "the page has a parameter unknown here: {bound}");
        if bound.starts_with("UPDATE") { format!("{bound}; SELECT changes()") } else { bound }
    }

    fn has_lost_enough(&self) -> bool {
        self.discipline != Discipline::Claim && self.repeated_reads() >= ENOUGH_LOST
    }

    /// Each of them is an update that was lost: two deposits began at the same balance, and ended at the same.
    fn repeated_reads(&self) -> usize {
        let deposits = self.tally.deposits.borrow();
        let read: BTreeSet<_> = deposits.iter().map(|(_, balance)| balance).collect();
        deposits.len() - read.len()
    }

    async fn judge(&self, sql: &mut Sqlite) {
        let balance = sql.ask(&self.fill_in(&self.statements.read, 0, 0)).await;
        let mut deposits = self.tally.deposits.take();
        let lost = i64::try_from(deposits.len()).unwrap() - i64::try_from(balance).unwrap();
        let (claims, writes) = (self.tally.refused_claims.get(), self.tally.refused_writes.get());
        let figures = format!(
            "{}: {} grants, {} leases ended under their holders, {claims} claims and {writes} writes refused, \
             {} deposits, {lost} lost",
            self.id(),
            self.tally.grants.get(),
            self.tally.overslept.get(),
            deposits.len(),
        );
        println!("{figures}");
        if self.discipline != Discipline::Claim {
            assert!(lost > 0, "the control did not fail: {figures}");
            return;
        }
        assert_eq!(lost, 0, "{figures}");
        // It keeps the largest number that it was shown, so who came later to the row had the larger one.
        deposits.sort_by_key(|(_, balance)| *balance);
        let is_in_order = deposits.is_sorted_by(|a, b| a.1 < b.1 && a.0 < b.0);
        assert!(is_in_order, "not in the order of their numbers (number, balance read): {deposits:?}");
        // With less, too little would have been put to the test. A machine that is free sees several times as much.
        let is_put_to_the_test = deposits.len() > 50 && claims > 10 && writes > 10;
        assert!(is_put_to_the_test && self.tally.overslept.get() > 10, "{figures}");
    }
}

impl Statements {
    fn of(discipline: Discipline) -> Self {
        let [claim, read, write] = steps();
        let without_claim = |write: &str| Self { claim: None, read: read.clone(), write: write.to_owned() };
        match discipline {
            Discipline::Claim => Self { claim: Some(claim), read, write },
            Discipline::CheckAtWrite => without_claim(
                "UPDATE account SET balance = :balance, fence = :fence WHERE id = :id AND fence <= :fence",
            ),
            Discipline::Unfenced => without_claim("UPDATE account SET balance = :balance WHERE id = :id"),
        }
    }
}

/// The three statements of the page, so that what is tested is what is recommended.
fn steps() -> [String; 3] {
    let text = one_line(&file("deposit.sql"));
    let statements = text.split(';').map(|statement| statement.trim().to_owned());
    let statements: Vec<_> = statements.filter(|statement| !statement.is_empty()).collect();
    statements.try_into().expect("the page has three statements")
}

/// SQL without its comments, as one line without the last semicolon.
fn one_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    lines.join(" ").trim_end_matches([' ', ';']).to_owned()
}

/// What stops a holder: mostly little, and sometimes a collector of garbage or a stalled disk, for longer than the ttl.
async fn pause(rng: &mut StdRng) {
    let is_long = rng.random_bool(0.3);
    let pause_ms = if is_long { rng.random_range(TTL_MS..3 * TTL_MS) } else { rng.random_range(0..20) };
    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// A `sqlite3` that stays, since a process for each statement would keep the machine busy with nothing else.
struct Sqlite {
    _child: Child,
    statements: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Sqlite {
    fn open(database: &Path) -> Self {
        // An error ends the process, so none can be taken for an answer. Nothing here has to survive a power cut.
        let mut child = Command::new("sqlite3")
            .args(["-batch", "-bail", "-cmd", ".timeout 20000", "-cmd", "PRAGMA synchronous=off"])
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("sqlite3 must be installed: `make test` says how");
        let statements = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _child: child, statements, answers }
    }

    /// Runs one line of SQL that answers with one number.
    async fn ask(&mut self, line: &str) -> u64 {
        self.statements.write_all(format!("{line};\n").as_bytes()).await.unwrap();
        let answer = tokio::time::timeout(2 * PATIENCE, self.answers.next_line()).await;
        let answer = answer.expect("sqlite3 does not answer").unwrap();
        answer
            .and_then(|answer| answer.parse().ok())
            .unwrap_or_else(|| panic!("sqlite3 cannot do this: {line}"))
    }
}
