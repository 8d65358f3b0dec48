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

/// A result that says by its owner whether it is still in memory.
struct Owned {
    bytes: Vec<u8>,
    _in_memory: Arc<()>,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[tokio::test]
async fn results_whose_callers_have_gone_take_no_more_memory_than_others() {
    let settings = EmbeddedSettings::default();
    let opened = EmbeddedStore::without_thread(InMemoryBackend::new(), settings, Arc::new(SystemClock));
    let Ok((store, writer)) = opened else { panic!("no store") };
    let Ok(key) = LockKey::parse(b"k") else { panic!("a bad key") };
    let in_memory = Arc::new(());
    // The writer is busy all the while, as with a disk that does not answer.
    for _ in 0..100 {
        let owned = Owned { bytes: vec![0; MEBIBYTE], _in_memory: in_memory.clone() };
        let result = WorkResult { status: None, content_type: None, body: bytes::Bytes::from_owner(owned) };
        let token = LeaseToken::generate().record_hash();
        let request = Request::from(StoreResult { key: key.clone(), token, fence: None, keep: None, result });
        let answer = store.run(&request, Instant::now() + Duration::from_millis(2)).await;
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "nothing was done");
    }
    assert_eq!(Arc::strong_count(&in_memory) - 1, 64, "the queue has room for 64 MiB");
    // Others are served beside them.
    let request = Request::from(Check);
    let mut check = store.run(&request, Instant::now() + Duration::from_secs(60));
    assert!((&mut check).now_or_never().is_none());
    drop(writer);
    assert_eq!(Arc::strong_count(&in_memory) - 1, 0);
    let answer = check.await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "certainly nothing was done");
}
