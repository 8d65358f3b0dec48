//! How much shares one commit.

use futures_util::FutureExt;
use redb::backends::InMemoryBackend;
use tokio::time::Instant;

use super::*;
use crate::clock::SystemClock;
use crate::lock::{LeaseToken, LockKey};
use crate::once::WorkResult;
use crate::store::embedded::EmbeddedStore;
use crate::store::{Check, LockStore, Request, StoreResult};

const MEBIBYTE: usize = 1024 * 1024;

#[tokio::test]
async fn a_batch_has_at_most_eight_mebibytes_of_results() {
    let settings = EmbeddedSettings::default();
    let opened = EmbeddedStore::without_thread(InMemoryBackend::new(), settings, Arc::new(SystemClock));
    let Ok((store, mut writer)) = opened else { panic!("no store") };
    let deadline = Instant::now() + Duration::from_secs(60);
    let Ok(key) = LockKey::parse(b"k") else { panic!("a bad key") };
    let requests = (0..20).map(|_| {
        let result = WorkResult { status: None, content_type: None, body: vec![0; MEBIBYTE].into() };
        let token = LeaseToken::generate().record_hash();
        Request::from(StoreResult { key: key.clone(), token, fence: None, keep: None, result })
    });
    let requests: Vec<_> = requests.chain([Request::from(Check)]).collect();
    let mut answers: Vec<_> = requests.iter().map(|request| store.run(request, deadline)).collect();
    let waiting = |answers: &mut Vec<_>| {
        answers.retain_mut(|answer: &mut crate::store::Replying<'_>| answer.now_or_never().is_none());
        answers.len()
    };
    assert_eq!(waiting(&mut answers), 21);
    for left in [13, 5, 0] {
        let batch = writer.commit_queued();
        let Some(next) = writer.answer(batch) else { panic!("it has stopped") };
        writer = next;
        assert_eq!(waiting(&mut answers), left);
    }
}
