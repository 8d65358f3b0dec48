//! The TLS handshake of one connection: its time limit, and its part in the drain.

use std::pin::pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_rustls::server::TlsStream;
use tracing::debug;

use super::subject::Subject;
use super::tls::Tls;
use super::{DRAIN_GRACE, Phase, ServerSettings};
use crate::telemetry::ConnectionRefused;

/// Makes a connection secure. Returns what requests come through, and whom the client's certificate names; `None`
/// when it failed, took too long, or the server's `phase` ended it.
pub(super) async fn shake_hands<S>(
    stream: S,
    tls: &Tls,
    settings: &ServerSettings,
    phase: &mut watch::Receiver<Phase>,
) -> Option<(TlsStream<S>, Option<Subject>)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let begun = Instant::now();
    let refuse = |reason| settings.counts.refused.count(reason);
    let mut handshake = pin!(tls.acceptor().accept(stream));
    let mut deadline = pin!(sleep(settings.tls_handshake_timeout));
    let stream = loop {
        select! {
            biased;
            result = handshake.as_mut() => match result {
                Ok(stream) => break stream,
                Err(error) => {
                    refuse(ConnectionRefused::HandshakeFailed);
                    debug!(%error, "the TLS handshake failed");
                    return None;
                }
            },
            changed = phase.changed() => match (changed, *phase.borrow_and_update()) {
                (Err(_), _) | (Ok(()), Phase::Cut) => return None,
                // Whoever came out of the backlog just now gets as long as all others had.
                (Ok(()), Phase::Closing) => {
                    let patience_ends = deadline.deadline().min(begun + DRAIN_GRACE);
                    deadline.as_mut().reset(patience_ends);
                }
                (Ok(()), Phase::Draining | Phase::Serving) => {}
            },
            () = &mut deadline => {
                refuse(ConnectionRefused::HandshakeLate);
                debug!("the TLS handshake took too long");
                return None;
            }
        }
    };
    // What was seen here is news to whoever serves the connection from now on.
    phase.mark_changed();
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let subject = shown.and_then(Subject::of);
    Some((stream, subject))
}
