//! Streams of events: of one lock, or of all locks with a prefix.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, Request, State};
use axum::http::Version;
use axum::response::Response;
use http_body::Frame;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep};
use utoipa::IntoParams;

use crate::access::{Caller, Denied, Permit, Right};
use crate::api::context::Asked;
use crate::api::extract::{bad_parameter, context_of, key_of, pairs_of, refuse_body, refuse_others};
use crate::api::headers::LAST_EVENT_ID;
use crate::api::openapi::WatchProblems;
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::{AppState, ConnectionPlace};
use crate::api::stream::StreamForm;
use crate::api::stream::lock_event::{EXAMPLE_STREAM, LockEventView, example_line};
use crate::lock::LockKey;
use crate::server::{Peer, ShortTcpTimeout};
use crate::service::{Selection, Told, Wanted, Watched, Watching};

/// The longest silence.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);
/// How often the caller's right to watch is checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a peer may leave sent bytes unacknowledged. It is as long as the longest silence.
const LONGEST_UNACKNOWLEDGED: Duration = LONGEST_SILENCE;

/// What is watched.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it only documents what `WatchCall` reads")]
pub(super) struct WatchQuery {
    /// The name of one lock: 1 to 512 bytes of UTF-8 without control characters. Send either this or `prefix`.
    #[param(value_type = String, required = false, min_length = 1, max_length = 512, example = "backup")]
    key: String,
    /// The beginning of the names of many locks, up to 512 bytes; empty for all locks. Send either this or `key`.
    #[param(value_type = String, required = false, max_length = 512)]
    prefix: String,
}

/// Where a stream is to go on.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct LastEventId {
    /// The `id` of the last event that you read. The stream goes on behind it, if this gateway still knows what came then.
    /// Browsers send it when they connect again.
    #[param(rename = "Last-Event-ID", value_type = String, required = false)]
    #[expect(dead_code, reason = "it only documents what the handler reads")]
    id: String,
}

/// A request to watch that is allowed.
pub(super) struct WatchCall {
    selection: Selection,
    after: Option<String>,
    caller: Caller,
}

impl FromRequest<AppState> for WatchCall {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let (context, caller) = context_of(&parts)?;
        let mut pairs = pairs_of(&parts, 1)?;
        let key = pairs.take("key").map(|bytes| key_of(&bytes)).transpose()?;
        let prefix = pairs.take("prefix").map(|bytes| prefix_of(&bytes)).transpose()?;
        refuse_others(&pairs, ["key", "prefix"].into_iter())?;
        let selection = match (key, prefix) {
            (Some(key), None) => Selection::Key(key),
            (None, Some(prefix)) => Selection::Prefix(prefix),
            (None, None) => {
                let detail = "say which lock to watch: key=… for one, or prefix=… for all that begin so";
                return Err(bad_parameter("key", detail));
            }
            (Some(_), Some(_)) => {
                return Err(bad_parameter("prefix", "send either key=… or prefix=…, not both"));
            }
        };
        let key = match &selection {
            Selection::Key(key) => Some(key.clone()),
            Selection::Prefix(_) => None,
        };
        context.set_asked(Asked::of(right_to(&selection), key));
        may_watch(&caller, &selection)?;
        let after = parts.headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
        refuse_body(parts, body, app).await?;
        Ok(Self { selection, after, caller })
    }
}

/// The right that a caller needs to watch these locks.
fn right_to(selection: &Selection) -> Right {
    match selection {
        Selection::Key(_) => Right::Inspect,
        Selection::Prefix(_) => Right::List,
    }
}

fn may_watch(caller: &Caller, selection: &Selection) -> Result<(), Denied> {
    match selection {
        Selection::Key(key) => caller.check(right_to(selection), key),
        Selection::Prefix(prefix) => caller.check_prefix(right_to(selection), prefix),
    }
}

/// The beginning of a key.
fn prefix_of(bytes: &[u8]) -> Result<String, Problem> {
    if bytes.is_empty() {
        return Ok(String::new());
    }
    match LockKey::parse(bytes) {
        Ok(key) => Ok(key.as_str().to_owned()),
        Err(error) => Err(bad_parameter("prefix", format!("no key can begin so: {error}"))),
    }
}

/// Watch locks
///
/// Tells what happens to one lock, or to all locks with a prefix, at every gateway of the store: `granted`, `renewed`,
/// `released`, `expired`, `broken`, and `waiting` when the number of waiting requests has changed.
///
/// Every stream starts with `resync`. It comes again if you may have missed something: then look at the lock, or list the
/// locks, and read on. The stream has server-sent events, or lines of JSON with `Accept: application/x-ndjson`. After a
/// silence of 10 seconds, a comment comes, or the event `heartbeat`.
#[utoipa::path(
    get, path = "/events", tag = "locks",
    params(WatchQuery, LastEventId),
    responses(
        (status = 200, description = "The events from now on.",
         content((String = "text/event-stream", example = json!(EXAMPLE_STREAM)), (LockEventView = "application/x-ndjson", example = json!(example_line()))),
         headers(("X-Accel-Buffering" = String, description = "`no`: proxies should pass events on at once."))),
        WatchProblems,
    )
)]
pub(super) async fn watch_locks(
    State(app): State<AppState>,
    version: Version,
    peer: Option<Extension<Arc<Peer>>>,
    form: StreamForm,
    call: WatchCall,
) -> Result<Response, Problem> {
    let WatchCall { selection, after, caller } = call;
    let connection = app.keep_connection(version, &caller, key_watches_too_often, too_many_watchers)?;
    let permit = caller.watch(&app.limits.shares).ok_or_else(key_watches_too_often)?;
    let changes = caller.changes();
    let watching = match app.service.watch(wanted(&caller, &selection), after.as_deref()).await? {
        Watched::Watching(watching) => watching,
        Watched::TooManyWatchers => return Err(too_many_watchers()),
        Watched::ShuttingDown => {
            return Err(Problem::new(
                ProblemType::ShuttingDown,
                "the gateway is stopping: connect to another one",
            ));
        }
    };
    let place = Arc::new(Mutex::new(Some(Place { watching, _permit: permit })));
    if let Some(changes) = changes {
        tokio::spawn(heed_changes(Arc::downgrade(&place), caller.clone(), selection.clone(), changes));
    }
    let body = WatchBody {
        place,
        selection,
        caller,
        form,
        look: Box::pin(sleep(LOOK_EVERY)),
        told_at: Instant::now(),
        _connection: connection,
        _tcp_timeout: peer.map(|Extension(peer)| peer.tcp_timeout.at_most(LONGEST_UNACKNOWLEDGED)),
    };
    Ok(form.stream(Body::new(body)))
}

fn too_many_watchers() -> Problem {
    Problem::new(
        ProblemType::TooManyWatchers,
        "this gateway has too many streams of events open already: try again later",
    )
}

fn key_watches_too_often() -> Problem {
    Problem::new(
        ProblemType::TooManyWatchers,
        "this API key has too many streams of events open already: close one, or try again later",
    )
}

/// One watcher. It counts among all watchers, and among those of its key.
struct Place {
    watching: Watching,
    _permit: Permit,
}

/// Which events are told: those of the selected locks that the caller may see.
fn wanted(caller: &Caller, selection: &Selection) -> Wanted {
    match selection {
        Selection::Key(key) => Wanted::key(key.clone()),
        Selection::Prefix(prefix) => Wanted::reach(caller.reach(right_to(selection), prefix)),
    }
}

/// Ends the watching of a caller that may no longer watch. If the caller's rights have changed, selects again which
/// locks it is told of. The body ends the stream too, but it is not polled while its client reads nothing.
async fn heed_changes(
    place: Weak<Mutex<Option<Place>>>,
    caller: Caller,
    selection: Selection,
    mut changes: watch::Receiver<()>,
) {
    loop {
        let has_changed = tokio::select! {
            () = sleep(LOOK_EVERY) => false,
            Ok(()) = changes.changed() => true,
        };
        let Some(place) = place.upgrade() else { return };
        let mut place = place.lock();
        if !may_go_on(&caller, &selection) {
            *place = None;
            return;
        }
        if let Some(Place { watching, .. }) = place.as_mut().filter(|_| has_changed) {
            watching.change(wanted(&caller, &selection));
        }
    }
}

/// Whether the caller may go on watching. Its key may have been revoked, or may have lost rights.
fn may_go_on(caller: &Caller, selection: &Selection) -> bool {
    caller.is_valid() && may_watch(caller, selection).is_ok()
}

/// The body of a stream. It ends when the server stops, or when the caller may no longer watch.
struct WatchBody {
    /// `None` once the caller may no longer watch.
    place: Arc<Mutex<Option<Place>>>,
    selection: Selection,
    caller: Caller,
    form: StreamForm,
    look: Pin<Box<Sleep>>,
    /// When something was last sent.
    told_at: Instant,
    _connection: ConnectionPlace,
    _tcp_timeout: Option<ShortTcpTimeout>,
}

impl WatchBody {
    /// The events as they are written, without those about locks that the caller may not see.
    fn write(&self, told: &[Arc<Told>], watching: &Watching) -> Bytes {
        let right = right_to(&self.selection);
        let sees = |told: &&Arc<Told>| told.key.as_ref().is_none_or(|key| self.caller.sees(right, key));
        let text = |told: &Arc<Told>| {
            let write = |id| self.form.write(LockEventView::of(told, id));
            watching.text_of(told, self.form as usize, write)
        };
        told.iter().filter(sees).map(text).collect::<Vec<_>>().concat().into()
    }

    /// The text of the next events; `None` at the end of the stream.
    fn poll_text(&self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut place = self.place.lock();
        if !may_go_on(&self.caller, &self.selection) {
            *place = None;
        }
        let Some(Place { watching, .. }) = &mut *place else { return Poll::Ready(None) };
        let told = ready!(watching.poll_told(context));
        Poll::Ready(told.map(|told| self.write(&told, watching)))
    }
}

impl HttpBody for WatchBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let text = loop {
            match self.poll_text(context) {
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(text)) if text.is_empty() => {}
                Poll::Ready(Some(text)) => break text,
                Poll::Pending => {
                    ready!(self.look.as_mut().poll(context));
                    self.look.as_mut().reset(Instant::now() + LOOK_EVERY);
                    if self.told_at.elapsed() >= LONGEST_SILENCE {
                        break self.form.write(LockEventView::heartbeat());
                    }
                }
            }
        };
        self.told_at = Instant::now();
        Poll::Ready(Some(Ok(Frame::data(text))))
    }
}
