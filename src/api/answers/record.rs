//! What is answered about records.

use axum::body::Body;
use axum::http::header::{
    CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    JSON, USUAL_HEADERS, expiry, insert_fencing_token, json, time_ago, with_grant_headers, with_token,
};
use crate::api::headers::{
    CORP, ONCE, ONCE_BYTES, ONCE_CONTENT_TYPE, ONCE_EARLIER, ONCE_KEPT_UNTIL, ONCE_STATUS, ONCE_STORED_AT,
};
use crate::lock::{FencingToken, LeaseToken, LockKey};
use crate::once::{Place, RecordView, Stored, WorkState};
use crate::server::InMemory;

/// What a stored result is served as if a browser could run it, or if nothing is known of it.
const BYTES: &str = "application/octet-stream";
/// The only media types that are served as what they are. On a gateway with `/ui` a stored script would be one of its own site.
const HARMLESS: [&str; 2] = ["application/json", "text/plain"];

/// The work is yours to do.
#[derive(Serialize, ToSchema)]
#[schema(as = Work)]
pub(crate) struct WorkView<'a> {
    /// The record.
    key: &'a str,
    /// The secret that renews the lease, stores the result and gives up.
    token: &'a str,
    /// The number of the grant: it grows with every grant of this record. Send it with every write to what the work changes.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    fencing_token: u64,
    /// What is left of the lease, in milliseconds: never more than there is.
    #[schema(minimum = 1)]
    ttl_ms: u64,
    /// When the lease ends, by the clock of the gateway.
    #[schema(format = DateTime)]
    expires_at: String,
    /// The note that was given with the first `PUT` of this token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    owner: Option<&'a str>,
    /// How many workers before may have done the work, or a part of it. If it is above 0, look before you act.
    earlier: u64,
    /// The number of the last of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64, value_type = u64, required = false)]
    earlier_fencing_token: Option<u64>,
    /// How many bytes the result may have.
    max_result_bytes: usize,
}

/// A worker, as others see it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Worker)]
pub(crate) struct WorkerView {
    /// The note that the worker gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    owner: Option<String>,
    /// The number of its grant.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    fencing_token: u64,
    /// What is left of its lease, in milliseconds; 0 if that is over.
    #[schema(minimum = 0)]
    expires_in_ms: u64,
    /// How many workers before it may have done the work. If its lease is over, it is counted too, unless it gave up with `clean=true`.
    earlier: u64,
}

/// That a result is stored.
#[derive(Serialize, ToSchema)]
pub(crate) struct StoredView<'a> {
    /// The record.
    key: &'a str,
    /// The number of the grant.
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    fencing_token: u64,
    /// For how much longer the result is kept, in milliseconds.
    kept_ms: u64,
    /// Until when, by the clock of the gateway.
    #[schema(format = DateTime)]
    kept_until: String,
    /// True if it was stored after the end of the lease: the ttl is too short for this work.
    late: bool,
}

/// A record, without its result.
#[derive(Serialize, ToSchema)]
#[schema(as = Record)]
pub(crate) struct RecordInfo<'a> {
    /// The record.
    key: &'a str,
    /// `working`: a worker has a lease. `lapsed`: none has, and there is no result. `done`: there is a result. More may be added.
    state: &'static str,
    #[serde(flatten)]
    worker: WorkerView,
    /// When the record is forgotten, by the clock of the gateway.
    #[schema(format = DateTime)]
    forgotten_at: String,
    /// When the result was stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, format = DateTime, required = false)]
    stored_at: Option<String>,
    /// How many bytes the result has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    result_bytes: Option<u64>,
    /// The number that was kept with the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u16, required = false)]
    status: Option<u16>,
    /// The media type that was kept with the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    content_type: Option<&'a str>,
    /// Whether your token is that of the worker; absent if you sent none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = bool, required = false)]
    yours: Option<bool>,
}

/// A part of the list of all records.
#[derive(Serialize, ToSchema)]
pub(crate) struct RecordList<'a> {
    /// Some of the records, each once. There may be none although more pages follow.
    pub(crate) records: Vec<RecordInfo<'a>>,
    /// The `cursor` of the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub(crate) next_cursor: Option<String>,
}

impl WorkerView {
    pub(crate) fn of(place: &Place) -> Self {
        Self {
            owner: place.lease.owner().map(str::to_owned),
            fencing_token: place.lease.fencing_token.get(),
            expires_in_ms: place.lease.left_ms,
            earlier: place.earlier,
        }
    }

    /// The last worker of a lapsed record, with what the next one is told.
    pub(crate) fn of_lapsed(place: &Place) -> Self {
        // A worker that gave up was counted then.
        Self { earlier: place.earlier + u64::from(!place.lease.is_released), ..Self::of(place) }
    }
}

impl<'a> RecordInfo<'a> {
    pub(crate) fn of(key: &'a LockKey, record: &'a RecordView) -> Self {
        let result = record.result.as_ref();
        Self {
            key: key.as_str(),
            state: match record.state {
                WorkState::Working => "working",
                WorkState::Lapsed => "lapsed",
                WorkState::Done => "done",
            },
            worker: match record.state {
                WorkState::Lapsed => WorkerView::of_lapsed(&record.place),
                WorkState::Working | WorkState::Done => WorkerView::of(&record.place),
            },
            forgotten_at: expiry(record.forgotten_in_ms),
            stored_at: result.map(|result| time_ago(result.age_ms)),
            result_bytes: result.map(|result| result.bytes),
            status: result.and_then(|result| result.status).map(crate::once::WorkStatus::get),
            content_type: result.and_then(|result| result.content_type.as_deref()),
            yours: record.yours,
        }
    }
}

/// The answer to a worker. `how` says by which way it is the worker, in a word for scripts.
pub(crate) fn work(
    status: StatusCode,
    how: &'static str,
    key: &LockKey,
    token: &LeaseToken,
    place: &Place,
    max_result_bytes: usize,
) -> Response {
    let Place { lease, earlier, earlier_fencing_token } = place;
    let view = WorkView {
        key: key.as_str(),
        token: token.reveal(),
        fencing_token: lease.fencing_token.get(),
        ttl_ms: lease.left_ms,
        expires_at: expiry(lease.left_ms),
        owner: lease.owner(),
        earlier: *earlier,
        earlier_fencing_token: earlier_fencing_token.map(FencingToken::get),
        max_result_bytes,
    };
    let mut response = with_grant_headers(json(status, JSON, &view), token, lease);
    let headers = response.headers_mut();
    headers.insert(ONCE, HeaderValue::from_static(how));
    headers.insert(ONCE_EARLIER, (*earlier).into());
    response
}

/// The answer to a worker whose result is stored.
pub(crate) fn stored(key: &LockKey, fencing_token: FencingToken, kept_ms: u64, late: bool) -> Response {
    let kept_until = expiry(kept_ms);
    let view =
        StoredView { key: key.as_str(), fencing_token: fencing_token.get(), kept_ms, kept_until, late };
    let mut response = json(StatusCode::OK, JSON, &view);
    insert_fencing_token(&mut response, fencing_token);
    let how = if late { "stored-late" } else { "stored" };
    response.headers_mut().insert(ONCE, HeaderValue::from_static(how));
    response
}

/// A result, byte for byte, in a way in which no browser runs it. By the token, a client knows whose answer it is.
pub(crate) fn replay(token: &LeaseToken, stored: Stored) -> Response {
    let Stored { fencing_token, age_ms, kept_ms, result, .. } = stored;
    let (bytes, is_shared) = (result.body.len(), !result.body.is_unique());
    let mut response = Response::new(Body::from(result.body));
    if is_shared {
        // With the store, or with all who have waited for it.
        response.extensions_mut().insert(InMemory);
    }
    *response.headers_mut() = HeaderMap::with_capacity(2 * USUAL_HEADERS);
    insert_fencing_token(&mut response, fencing_token);
    let headers = response.headers_mut();
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox; frame-ancestors 'none'"),
        (CONTENT_DISPOSITION, "attachment"),
        (CORP, "same-origin"),
        (ONCE, "replayed"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    for (name, time) in [(ONCE_STORED_AT, time_ago(age_ms)), (ONCE_KEPT_UNTIL, expiry(kept_ms))] {
        headers.extend(HeaderValue::try_from(time).ok().map(|time| (name, time)));
    }
    // A media type that was kept is visible ASCII.
    let kept_type = result.content_type.and_then(|kept| HeaderValue::try_from(kept).ok());
    let served = kept_type.clone().filter(is_harmless);
    headers.insert(CONTENT_TYPE, served.unwrap_or(HeaderValue::from_static(BYTES)));
    headers.extend(kept_type.map(|kept| (ONCE_CONTENT_TYPE, kept)));
    // A proxy may take the length away, and break off.
    headers.insert(ONCE_BYTES, bytes.into());
    headers.extend(result.status.map(|status| (ONCE_STATUS, status.get().into())));
    with_token(response, token)
}

/// Whether no browser runs it, whatever stands behind its name.
fn is_harmless(media_type: &HeaderValue) -> bool {
    let mime = media_type.to_str().ok().and_then(|text| text.parse::<mime::Mime>().ok());
    mime.is_some_and(|mime| HARMLESS.contains(&mime.essence_str()))
}

/// What the document shows of a piece of work.
pub(crate) fn example_work() -> WorkView<'static> {
    WorkView {
        key: "pay:ann:4711",
        token: "choose-a-secret-of-your-own",
        fencing_token: 1_795_240_800_123_456,
        ttl_ms: 29_999,
        expires_at: "2026-11-21T06:00:30.123Z".into(),
        owner: Some("shop@web1"),
        earlier: 0,
        earlier_fencing_token: None,
        max_result_bytes: 65_536,
    }
}

/// What the document shows of a worker.
pub(crate) fn example_worker() -> WorkerView {
    WorkerView {
        owner: Some("shop@web1".into()),
        fencing_token: 1_795_240_800_123_456,
        expires_in_ms: 12_345,
        earlier: 0,
    }
}

/// What the document shows of a stored result.
pub(crate) fn example_stored() -> StoredView<'static> {
    StoredView {
        key: "pay:ann:4711",
        fencing_token: 1_795_240_800_123_456,
        kept_ms: 86_400_000,
        kept_until: "2026-11-22T06:00:30.123Z".into(),
        late: false,
    }
}

/// What the document shows of a record.
pub(crate) fn example_record() -> RecordInfo<'static> {
    RecordInfo {
        key: "pay:ann:4711",
        state: "done",
        worker: WorkerView { expires_in_ms: 0, ..example_worker() },
        forgotten_at: "2026-11-22T06:00:30.123Z".into(),
        stored_at: Some("2026-11-21T06:00:30.123Z".into()),
        result_bytes: Some(48),
        status: Some(201),
        content_type: Some("application/json"),
        yours: None,
    }
}

/// What the document shows of a list.
pub(crate) fn example_records() -> RecordList<'static> {
    RecordList { records: vec![example_record()], next_cursor: Some("5d1f0c2b7a9e4836.0.1024".into()) }
}
