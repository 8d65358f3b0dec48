//! The TLS handshake of one connection: its time limit, its turn, and its part in the drain.

mod turns;

use std::io;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::select;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::Accept;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tracing::debug;

use super::addresses::AddressTurns;
use super::phase::{DRAIN_GRACE, Phase};
use super::settings::ServerSettings;
use super::tcp_timeout::TimeoutStream;
use super::tls::{Subject, Tls};
use super::wire::Stream;
use crate::telemetry::ConnectionRefused;

pub(super) use self::turns::HandshakeTurns;

/// The answer for a person who forgot the `s` of `https`.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\
    Connection: close\r\nContent-Length: 48\r\n\r\nThis server speaks TLS only: begin with https://\n";
/// How long the client may go on sending. If something is unread when the connection is closed, the client may lose the
/// answer.
const LISTENS_ON: Duration = Duration::from_secs(1);
const LISTENS_TO_BYTES: u64 = 64 * 1024;

/// Makes a connection secure. If the client begins to speak plain HTTP, it gets an answer in words; rustls would send
/// the bytes of an alert. No handshake begins with a letter or the end of a line.
async fn accept(
    mut stream: TimeoutStream<TcpStream>,
    tls: &Tls,
    turns: &HandshakeTurns,
    own: &AddressTurns,
) -> io::Result<TlsStream<TimeoutStream<TcpStream>>> {
    let mut first = [0];
    stream.get_ref().peek(&mut first).await?;
    if !matches!(first[0], b'A'..=b'Z' | b'a'..=b'z' | b'\r' | b'\n') {
        return turns.take(own, tls.acceptor().accept(stream), has_left).await;
    }
    let answer = async {
        stream.write_all(PLAIN_HTTP).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LISTENS_TO_BYTES), &mut tokio::io::sink()).await
    };
    let _ = timeout(LISTENS_ON, answer).await;
    Err(io::Error::other("the client speaks HTTP without TLS"))
}

/// Whether the client has closed its side. Before the first answer, it can then not bring its handshake to an end.
fn has_left(handshake: &Accept<TimeoutStream<TcpStream>>) -> bool {
    let Some(stream) = handshake.get_ref() else { return false };
    let readiness = stream.get_ref().ready(Interest::READABLE).now_or_never();
    readiness.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
}

/// Makes a connection secure. Returns the stream of the requests, and the subject of the client's certificate. Returns
/// `None` if the handshake failed or took too long, or if the server's `phase` ended it. The handshakes of its address
/// have their `own` turns.
pub(super) async fn shake_hands(
    stream: TimeoutStream<TcpStream>,
    tls: &Tls,
    (turns, own): (&HandshakeTurns, &AddressTurns),
    settings: &ServerSettings,
    phase: &mut watch::Receiver<Phase>,
) -> Option<(Stream, Option<Subject>)> {
    let begun = Instant::now();
    let refuse = |reason| settings.counts.refused.count(reason);
    let mut handshake = pin!(accept(stream, tls, turns, own));
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
                // A connection that has just come out of the backlog gets as long as all others had.
                (Ok(()), Phase::Closing) => {
                    let ends_at = deadline.deadline().min(begun + DRAIN_GRACE);
                    deadline.as_mut().reset(ends_at);
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
    // The next reader of `phase` has not seen this change yet.
    phase.mark_changed();
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let subject = shown.and_then(Subject::of);
    Some((Either::Right(Box::new(stream)), subject))
}
