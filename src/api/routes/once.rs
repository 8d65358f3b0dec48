//! The operations on a record: parse, ask the service, map the answer. Both forms of the address end here.

use std::pin::pin;
use std::slice::from_ref;

use axum::Extension;
use axum::extract::State;
use axum::http::{Method, StatusCode, Version};
use axum::response::{IntoResponse, Response};

use super::taking::{account_of, key_waits_too_often, too_many_waiters, wait_permit, while_allowed};
use crate::access::Right;
use crate::api::answers::{
    self, JSON, RecordInfo, StoredView, WorkView, example_record, example_stored, example_work,
};
use crate::api::context::RequestContext;
use crate::api::extract::{
    BeginQuery, GiveUpQuery, LockCall, LookQuery, RenewWorkQuery, StoreCall, StoreQuery, bad_parameter,
};
use crate::api::middleware::track;
use crate::api::openapi::{
    BeginProblems, FingerprintParam, GiveUpProblems, LookProblems, NumberParam, OptionalToken,
    RecordKeyParam, RenewWorkProblems, RequiredToken, StoreProblems, TokenUnlessForced,
};
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::AppState;
use crate::audit::Event;
use crate::lock::Note;
use crate::once::{BrokenRecord, GivenUp, NotWorker, RenewedWork, Storing};
use crate::server::BodyWasRead;
use crate::service::{BeginOutcome, BeginRequest, NotBegun};
use crate::store::StoreError;
use crate::telemetry::metrics::metrics;

/// Begin a piece of work
///
/// **201**: the work is yours to do. **200**: it is done, and here is its result. **423**: another client does it. With `wait`, the request
/// waits for the result, or for the place of a worker that crashes or gives up.
///
/// Choose a fresh token for every run of your program, and repeat the request with it as often as you like. Never derive the token from
/// the request that you serve: two that are told 201 with one token both do the work. If `earlier` is above 0, a worker before may have done the
/// work, or a part of it: look before you act.
#[utoipa::path(
    put, path = "/once/{key}", tag = "once",
    params(RecordKeyParam, BeginQuery, OptionalToken, FingerprintParam),
    responses(
        (status = 201, description = "The work is yours to do. `Once` says how: `begun`, `taken-over` from a worker before, or `continued` if this token was told so already.", body = WorkView,
         headers(("Lease-Token" = String, description = "The secret that renews the lease, stores the result and gives up."),
                 ("Fencing-Token" = u64, description = "The number of the grant. Send it with every write to what the work changes."),
                 ("Once" = String, description = "`begun`, `taken-over` or `continued`. More may be added."),
                 ("Once-Earlier" = u64, description = "How many workers before may have done the work, or a part of it.")), example = json!(example_work())),
        (status = 200, description = "It is done. The body is the result, byte for byte. Only `application/json` and `text/plain` are served as what they are.",
         content((String = "application/octet-stream", example = json!("charged 12.50 EUR")), (String = "text/plain", example = json!("charged 12.50 EUR"))),
         headers(("Lease-Token" = String, description = "The token of your request, or the one that the gateway made for it. With another one, it answers another request."),
                 ("Fencing-Token" = u64, description = "The number of the worker that stored the result."),
                 ("Once" = String, description = "`replayed`."),
                 ("Once-Status" = u64, description = "The number that was stored with the result, if there is one."),
                 ("Once-Content-Type" = String, description = "The media type that was stored with the result, if there is one."),
                 ("Once-Bytes" = u64, description = "How many bytes the result has. If the body has fewer, the answer was broken off."),
                 ("Once-Stored-At" = String, description = "When the result was stored."),
                 ("Once-Kept-Until" = String, description = "When the key is new again."),
                 ("Content-Disposition" = String, description = "`attachment`: no browser shows it."),
                 ("Content-Security-Policy" = String, description = "No browser runs anything in it."),
                 ("Cross-Origin-Resource-Policy" = String, description = "`same-origin`: without CORS, a browser gives the answer to no page of another site."),
                 ("X-Content-Type-Options" = String, description = "`nosniff`: the media type is what it says."))),
        BeginProblems,
    )
)]
pub(super) async fn begin_work(
    State(app): State<AppState>,
    version: Version,
    call: LockCall<BeginQuery>,
) -> Result<Response, Problem> {
    let LockCall { key, token, query, caller, .. } = call;
    let keep = || app.keep_connection(version, &caller, key_waits_too_often, too_many_waiters);
    let _connection = (!query.wait.is_zero()).then(keep).transpose()?;
    // By no token: who waits for a record has no ticket, and takes over none of a lock's.
    let wait = wait_permit(&app, &caller, from_ref(&key), None, query.wait)?;
    let request = BeginRequest {
        key: key.clone(),
        token,
        ttl: query.ttl,
        keep: query.keep,
        note: Note::new(query.owner),
        fingerprint: query.fingerprint,
        may_take_over: query.takeover,
        wait: query.wait,
        account: account_of(&app, &caller),
    };
    let begin = pin!(app.service.begin(request));
    let beginning = match wait {
        Some(_) => while_allowed(&caller, Right::Once, from_ref(&key), begin).await??,
        None => begin.await?,
    };
    let (token, most) = (&beginning.token, app.limits.max_result_bytes);
    let work = |how, place| answers::work(StatusCode::CREATED, how, &key, token, place, most);
    match beginning.outcome {
        BeginOutcome::Granted(place, guard) => {
            let how = if place.earlier == 0 { "begun" } else { "taken-over" };
            Ok(track(work(how, &place), guard))
        }
        BeginOutcome::Continued(place) => Ok(work("continued", &place)),
        BeginOutcome::Done(stored) => Ok(answers::replay(token, stored)),
        BeginOutcome::NotBegun(why) => Err(not_begun(why)),
    }
}

/// Why a piece of work was not begun.
fn not_begun(why: NotBegun) -> Problem {
    match why {
        NotBegun::Busy(worker) => Problem::once_in_progress(&worker),
        NotBegun::Abandoned(worker, is_own) => Problem::once_abandoned(&worker, is_own),
        NotBegun::FingerprintMismatch => Problem::new(
            ProblemType::FingerprintMismatch,
            "the record was begun with another Once-Fingerprint, so the key belongs to another request",
        ),
        NotBegun::TokenReleased => Problem::new(
            ProblemType::TokenReleased,
            "this token gave up before, or the gateway made it for one lease: choose a fresh token",
        ),
        NotBegun::NearlyFull => nearly_full("there is no room for a new record"),
        NotBegun::Unsupported(reason) => Problem::new(ProblemType::OnceUnsupported, reason),
        NotBegun::TooManyWaiters => too_many_waiters(),
        NotBegun::NotReplicated(reason) => Problem::new(ProblemType::NotReplicated, reason),
        NotBegun::ShuttingDown => Problem::new(
            ProblemType::ShuttingDown,
            "the gateway is stopping, so your wait ended here: send the same request to another gateway",
        ),
    }
}

/// Store the result
///
/// Stores the body as the result of the work, and ends the lease. Repeat the request as it is until it is answered: the answer is the
/// same, but for `late`. It is also stored if the lease is over, as long as no other client has taken over. An empty body needs `status`.
#[utoipa::path(
    post, path = "/once/{key}", tag = "once",
    params(RecordKeyParam, StoreQuery, RequiredToken, NumberParam),
    request_body(content = String, content_type = "application/octet-stream", description = "The result: any bytes, at most `max_result_bytes` of the 201. Its Content-Type is kept."),
    responses(
        (status = 200, description = "The result is stored, by this request or by an earlier copy of it.", body = StoredView,
         headers(("Fencing-Token" = u64, description = "The number of the grant."),
                 ("Once" = String, description = "`stored`, or `stored-late` after the end of the lease.")), example = json!(example_stored())),
        StoreProblems,
    )
)]
pub(super) async fn store_result(State(app): State<AppState>, call: StoreCall) -> Result<Response, Problem> {
    // If all of the result arrives, the work is done: it is stored even if the client leaves meanwhile.
    app.see_through(account_of(&app, &call.call.caller), store(app.clone(), call)).await
}

async fn store(app: AppState, call: StoreCall) -> Result<Response, Problem> {
    let StoreCall { call, fence, result } = call;
    let (key, token) = (&call.key, call.required_token()?);
    let (result, room) = result.read().await?;
    let bytes = result.body.len();
    let stored = app.service.store_result(key, token, fence, call.query.keep, result).await;
    drop(room);
    if let Ok(Storing::Stored { .. }) = stored {
        metrics().once_result_bytes.observe(bytes as f64);
    }
    match stored? {
        Storing::Stored { fencing_token, kept_ms, is_late } => {
            let mut response = answers::stored(key, fencing_token, kept_ms, is_late);
            // Clients that store many results keep their connections.
            response.extensions_mut().insert(BodyWasRead);
            Ok(response)
        }
        Storing::Differs => Err(Problem::new(
            ProblemType::ResultDiffers,
            "this token has stored another result before, and that one counts",
        )),
        Storing::NearlyFull => Err(nearly_full(
            "there is no room for a result of this length: store one of at most 1024 bytes, the place is still yours",
        )),
        Storing::NotReplicated(reason) => Err(Problem::new(ProblemType::OutcomeUnknown, reason)),
        Storing::Refused(why) => Err(refused(why)),
    }
}

/// Renew the lease of a worker
///
/// Makes the lease last for `ttl` from now, unless more is left of it. A lease that is over cannot be renewed; the result can still be
/// stored, until another client takes over.
#[utoipa::path(
    patch, path = "/once/{key}", tag = "once",
    params(RecordKeyParam, RenewWorkQuery, RequiredToken, NumberParam),
    responses(
        (status = 200, description = "The work is still yours, for `ttl_ms` from now.", body = WorkView,
         headers(("Lease-Token" = String, description = "The secret that renews the lease, stores the result and gives up."),
                 ("Fencing-Token" = u64, description = "The number of the grant, unchanged."),
                 ("Once" = String, description = "`continued`."),
                 ("Once-Earlier" = u64, description = "How many workers before may have done the work, or a part of it.")), example = json!(example_work())),
        RenewWorkProblems,
    )
)]
pub(super) async fn renew_work(
    State(app): State<AppState>,
    call: LockCall<RenewWorkQuery>,
) -> Result<Response, Problem> {
    app.see_through(account_of(&app, &call.caller), renew(app.clone(), call)).await
}

async fn renew(app: AppState, call: LockCall<RenewWorkQuery>) -> Result<Response, Problem> {
    let token = call.required_token()?;
    match app.service.renew_work(&call.key, token, call.query.fence, call.query.ttl).await? {
        RenewedWork::Renewed(place) => {
            let most = app.limits.max_result_bytes;
            Ok(answers::work(StatusCode::OK, "continued", &call.key, token, &place, most))
        }
        RenewedWork::LeaseOver => Err(Problem::new(
            ProblemType::LeaseOver,
            "the lease is over, and a renewal does not bring it back: store what you have at once, or stop",
        )),
        RenewedWork::AlreadyStored => Err(already_stored()),
        RenewedWork::Refused(why) => Err(refused(why)),
    }
}

/// Give up
///
/// Ends your place, so that another may begin at once. The next worker is told that you may have done a part of the work. With `clean=true`
/// you say that you have certainly done nothing. For 2 minutes, the token is refused on this key, whatever the answer is, and the same
/// request gets the same answer.
///
/// With `force=true` and no token, the record is broken: its worker's place ends, or its result is removed. Always send `fencing_token`.
/// Without it, a repeated request may break the next worker's place.
#[utoipa::path(
    delete, path = "/once/{key}", tag = "once",
    params(RecordKeyParam, GiveUpQuery, TokenUnlessForced),
    responses(
        (status = 204, description = "The place of the token has ended. With `force`: the place or the result of that number has."),
        GiveUpProblems,
    )
)]
pub(super) async fn give_up(
    State(app): State<AppState>,
    Extension(context): Extension<RequestContext>,
    call: LockCall<GiveUpQuery>,
) -> Result<Response, Problem> {
    if call.query.force {
        return break_record(app, &context, call).await;
    }
    app.see_through(account_of(&app, &call.caller), leave_place(app.clone(), call)).await
}

async fn leave_place(app: AppState, call: LockCall<GiveUpQuery>) -> Result<Response, Problem> {
    let token = call.required_token()?;
    match app.service.give_up(&call.key, token, call.query.clean).await? {
        GivenUp::GivenUp => Ok(StatusCode::NO_CONTENT.into_response()),
        GivenUp::AlreadyStored => Err(already_stored()),
        GivenUp::Refused(why) => Err(refused(why)),
    }
}

async fn break_record(
    app: AppState,
    context: &RequestContext,
    call: LockCall<GiveUpQuery>,
) -> Result<Response, Problem> {
    if call.token.is_some() {
        let detail =
            "send either Lease-Token, to give up your own place, or force=true, to break a record: not both";
        return Err(bad_parameter("force", detail));
    }
    let (account, state) = (account_of(&app, &call.caller), app.clone());
    let (who, right) = (context.who(), context.right().map(Right::name));
    let LockCall { key, query, .. } = call;
    // The audit log has this even if the client has left meanwhile.
    let breaking = async move {
        let Some(found) = state.service.look_at_record(&key, None).await? else {
            return Ok(BrokenRecord::None);
        };
        let lease = found.place.lease;
        let number = query.fencing_token.unwrap_or(lease.fencing_token);
        let broken = state.service.break_record(&key, number, query.clean).await;
        let outcome = match &broken {
            Ok(BrokenRecord::Broken) => "broken",
            Err(StoreError::Unknown(_)) => "unknown",
            _ => return broken,
        };
        let (record, fencing_token) = (Some(key.as_str().to_owned()), Some(number.get()));
        let owner = lease.owner().filter(|_| number == lease.fencing_token).map(str::to_owned);
        state.audit.record(Event::Break { who, right, lock: None, record, fencing_token, owner, outcome });
        broken
    };
    match app.see_through(account, breaking).await? {
        BrokenRecord::Broken => Ok(StatusCode::NO_CONTENT.into_response()),
        BrokenRecord::None => Err(nothing_there("there is no record: nothing was broken")),
        BrokenRecord::Superseded(number) => Err(Problem::superseded(number, None)),
    }
}

/// Look at a record
///
/// Says how far a piece of work is: who does it, who has done it, and how large the result is; never the result itself. If you send a
/// `Lease-Token`, the answer also says whether that is the worker's.
#[utoipa::path(
    get, path = "/once/{key}", tag = "once",
    params(RecordKeyParam, OptionalToken),
    responses(
        (status = 200, description = "There is a record.", body = RecordInfo,
         headers(("Fencing-Token" = u64, description = "The number of the last worker.")), example = json!(example_record())),
        LookProblems,
    )
)]
pub(super) async fn look_at_record(
    State(app): State<AppState>,
    method: Method,
    call: LockCall<LookQuery>,
) -> Result<Response, Problem> {
    // As with a lock, the answer to HEAD has no place for what a token is told.
    let token = call.token.as_ref().filter(|_| method != Method::HEAD);
    let found = app.service.look_at_record(&call.key, token).await?;
    let record = found.ok_or_else(|| nothing_there("there is no record of this key"))?;
    let mut response = answers::json(StatusCode::OK, JSON, &RecordInfo::of(&call.key, &record));
    answers::insert_fencing_token(&mut response, record.place.lease.fencing_token);
    Ok(response)
}

fn refused(why: NotWorker) -> Problem {
    match why {
        NotWorker::Superseded { fencing_token, is_done } => Problem::superseded(fencing_token, Some(is_done)),
        NotWorker::NotBegun => nothing_there(
            "no client has begun it, or the place was given up, broken or lost: if you have a result, begin once more, and store it on 201",
        ),
    }
}

fn nothing_there(detail: &str) -> Problem {
    Problem::new(ProblemType::NotBegun, detail)
}

fn already_stored() -> Problem {
    Problem::new(ProblemType::AlreadyStored, "this token has stored its result, which ended its lease")
}

fn nearly_full(detail: &str) -> Problem {
    Problem::new(ProblemType::StoreNearlyFull, detail)
}
