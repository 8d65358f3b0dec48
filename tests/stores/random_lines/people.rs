//! What the people of a run do, and the record of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::clock::boottime;
use fencepost::lock::{LeaseToken, LockKey, Released, Terms, Ttl};
use fencepost::service::{AcquireRequest, Tenant};
use fencepost::store::StoreError;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until};

use super::faults::Tape;
use super::fleet::{Answer, Fleet};
use super::plan::{Person, Put, Run};
use super::wire::Asked;
use kit::{PATIENCE, fresh_token};

/// How often one asks again who was not answered.
const MOST_TRIES: usize = 3;

/// One thing that somebody did.
#[derive(Debug)]
pub struct Deed {
    pub token: Option<LeaseToken>,
    pub person: usize,
    pub started: Duration,
    pub ended: Duration,
    pub act: Act,
}

#[derive(Debug)]
pub enum Act {
    Put {
        wait: Duration,
        /// Whether no other request has the same token.
        is_alone: bool,
        answer: Answer,
        asked: Asked,
    },
    /// `None` where the gateway was killed.
    Release(Option<Result<Released, StoreError>>),
}

impl Deed {
    pub fn waited_for_grant(&self) -> Option<Duration> {
        let is_granted = matches!(&self.act, Act::Put { answer: Answer::Granted(..), .. });
        is_granted.then(|| self.ended - self.started)
    }
}

/// A run under way, on one key.
pub struct Scene {
    pub run: Arc<Run>,
    pub key: LockKey,
    pub tape: Arc<Tape>,
    fleet: Arc<Fleet>,
    began: Instant,
    deeds: Mutex<Vec<Deed>>,
}

impl Scene {
    pub fn new(run: Arc<Run>, key: LockKey, tape: Arc<Tape>, fleet: Arc<Fleet>) -> Self {
        Self { run, key, tape, fleet, began: Instant::now(), deeds: Mutex::default() }
    }

    /// Returns when everybody has gone, with what they did.
    pub async fn play(&self) -> Vec<Deed> {
        join_all(self.run.people.iter().enumerate().map(|(number, person)| self.live(number, person))).await;
        std::mem::take(&mut *self.deeds.lock().unwrap())
    }

    async fn live(&self, number: usize, person: &Person) {
        let token = person.has_own_token.then(|| LeaseToken::parse(fresh_token().as_bytes()).unwrap());
        let puts = person.puts.iter().map(|put| self.put(number, person, token.clone(), *put));
        let delete = async {
            if let (Some(at_ms), Some(token)) = (person.deletes_at_ms, &token) {
                self.wait_until(at_ms).await;
                self.release(number, at_ms as usize, token).await;
            }
        };
        tokio::join!(join_all(puts), delete);
        // Where two requests of one token were answered and one of them did not hear it, the other may have pinned the
        // grant: it is the client's to end.
        if let Some(token) = token
            && person.has_long_lease()
            && person.puts.len() > 1
        {
            self.release(number, 0, &token).await;
        }
    }

    async fn put(&self, number: usize, person: &Person, token: Option<LeaseToken>, put: Put) {
        self.wait_until(put.at_ms).await;
        let wait = Duration::from_millis(put.wait_ms);
        let hangs_up_after = put.hangs_up_after_ms.map(Duration::from_millis);
        for try_number in 0..MOST_TRIES {
            let gateway = put.gateway + try_number;
            let ttl = Ttl::from_ms(person.ttl_ms).unwrap();
            let wish = AcquireRequest {
                key: self.key.clone(),
                token: token.clone(),
                ttl,
                note: Default::default(),
                wait,
                terms: Terms::default(),
                tenant: Tenant::default(),
            };
            let started = boottime();
            let (answer, asked) = self.fleet.put(gateway, wish, hangs_up_after).await;
            let granted = match &answer {
                Answer::Granted(token, _) | Answer::AlreadyHeld(token, _) => Some(token.clone()),
                _ => None,
            };
            let is_over = !matches!(answer, Answer::Failed(_) | Answer::Lost | Answer::ShuttingDown);
            let is_alone = token.is_none() || person.puts.len() == 1 && try_number == 0;
            self.note(Deed {
                token: token.clone().or(granted.clone()),
                person: number,
                started,
                ended: boottime(),
                act: Act::Put { wait, is_alone, answer, asked },
            });
            if let (Some(token), Some(after_ms)) = (granted, person.releases_after_ms) {
                sleep(Duration::from_millis(after_ms)).await;
                self.release(number, gateway, &token).await;
            }
            if is_over {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Goes on until it is answered: a lease may be long.
    async fn release(&self, number: usize, first_gateway: usize, token: &LeaseToken) {
        let give_up = Instant::now() + PATIENCE;
        for gateway in first_gateway.. {
            let started = boottime();
            let answer = self.fleet.release(gateway, self.key.clone(), token.clone()).await;
            let is_over = matches!(answer, Some(Ok(_)));
            self.note(Deed {
                token: Some(token.clone()),
                person: number,
                started,
                ended: boottime(),
                act: Act::Release(answer),
            });
            if is_over {
                return;
            }
            assert!(Instant::now() < give_up, "a release is never answered: {:?}", self.key);
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn wait_until(&self, at_ms: u64) {
        sleep_until(self.began + Duration::from_millis(at_ms)).await;
    }

    fn note(&self, deed: Deed) {
        let act = match &deed.act {
            Act::Put { wait, answer, .. } => format!("PUT, wait {wait:?}, -> {answer:?}"),
            Act::Release(answer) => format!("DELETE -> {answer:?}"),
        };
        let hash = deed.token.as_ref().map(|token| token.hash().to_string());
        let hash = hash.as_deref().map_or("(of the server)", |hash| &hash[..6]);
        let text = format!("  person {} {hash} {act} at +{:?}", deed.person, deed.ended - deed.started);
        self.tape.note(deed.started, text);
        self.deeds.lock().unwrap().push(deed);
    }
}
