//! One connection through the proxy: a loop for what the client says, and two for what the server answers.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use socket2::{SockFilter, SockRef};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Fate, Gate, Outage, Progress, Reports, Shared};

/// What is read at once at most. What travels in chunks is told apart by what is read.
const LARGEST_CHUNK: usize = 16 * 1024;
/// The instruction of a packet filter by which it says how much of a packet passes.
const RETURN: u16 = 0x06;
/// How much of an answer is missing that is cut.
const CUT: usize = 8;

/// The way back to the client; empty once its side was closed while the server's stays open.
type ToClient = Arc<Mutex<Option<OwnedWriteHalf>>>;

/// What happens to an answer, in the order in which their messages were passed on.
struct Awaited {
    message: Vec<u8>,
    answer: Answer,
    progress: Option<Reports>,
}

enum Answer {
    Pass,
    PassAfter(Gate),
    Cut,
    CutShort,
    Instead(String),
    Lose,
}

/// How a loop ends.
enum End {
    Close,
    /// Both sides stay open, and neither hears of the other.
    Silence,
    /// The same, and nobody is there any more.
    Vanishing,
}

pub(super) async fn pass_on(client: TcpStream, shared: &Shared) {
    // New connections are not touched by what happened to all before them.
    let mut outage = shared.outage.subscribe();
    outage.borrow_and_update();
    let target = (Ipv4Addr::LOCALHOST, shared.target_port.load(Ordering::SeqCst));
    let Ok(server) = TcpStream::connect(target).await else { return };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (mut from_client, to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let to_client = Arc::new(Mutex::new(Some(to_client)));
    let (expect, mut expected) = unbounded_channel();
    let (hear_from, mut heard) = unbounded_channel();
    let has_left = Gate::new();
    let end = {
        let mut requests =
            Requests { to_server: &mut to_server, to_client: to_client.clone(), expect, shared };
        tokio::select! {
            end = requests.pass_on(&mut from_client) => end,
            end = deliver(&mut heard, &to_client, &has_left) => end,
            end = async {
                hear(&mut from_server, &mut expected, shared, hear_from).await;
                has_left.cancel();
                // What it said before is delivered first.
                std::future::pending().await
            } => end,
            Ok(()) = outage.changed() => match *outage.borrow() {
                Outage::Frozen => End::Silence,
                Outage::Severed => End::Close,
                Outage::Vanished => End::Vanishing,
            },
        }
    };
    if matches!(end, End::Vanishing) {
        // The kernel hears nothing more for them: no packet passes this filter, and none of them is answered.
        let nothing = [SockFilter::new(RETURN, 0, 0, 0)];
        SockRef::from(from_server.as_ref()).attach_filter(&nothing).unwrap();
        SockRef::from(from_client.as_ref()).attach_filter(&nothing).unwrap();
    }
    if matches!(end, End::Silence | End::Vanishing) {
        // The sockets live on in this task, until the proxy ends.
        std::future::pending::<()>().await;
    }
}

struct Requests<'a> {
    to_server: &'a mut OwnedWriteHalf,
    to_client: ToClient,
    expect: UnboundedSender<Awaited>,
    shared: &'a Shared,
}

impl Requests<'_> {
    async fn pass_on(&mut self, from_client: &mut OwnedReadHalf) -> End {
        let mut buffer = BytesMut::new();
        loop {
            while let Some(length) = self.shared.framing.first(&buffer) {
                let message = buffer.split_to(length);
                let (fate, progress) = self.shared.fate_of(&message);
                advance(progress.as_ref(), Progress::Seen);
                let answer = match fate {
                    Fate::Pass => Answer::Pass,
                    Fate::Hold { message, answer } => {
                        message.cancelled().await;
                        Answer::PassAfter(answer)
                    }
                    Fate::CutAfter => Answer::Cut,
                    Fate::CutAnswer => Answer::CutShort,
                    Fate::Instead(text) => Answer::Instead(text),
                    Fate::LoseAnswers => Answer::Lose,
                    Fate::CutBefore => return End::Close,
                    Fate::HalfOpen => return End::Silence,
                    Fate::CutWithin => {
                        let _ = self.to_server.write_all(&message[..length / 2]).await;
                        return End::Close;
                    }
                    Fate::CutDuring => {
                        self.write(&message, Answer::Lose, progress).await;
                        return End::Close;
                    }
                    Fate::Late { cut, message: gate } => {
                        cut.cancelled().await;
                        // The client reads the end of the stream, and leaves.
                        *self.to_client.lock().await = None;
                        gate.cancelled().await;
                        self.write(&message, Answer::Lose, progress).await;
                        // What was behind it is lost, and the answer is awaited: it says that the server acted.
                        return std::future::pending().await;
                    }
                };
                if !self.write(&message, answer, progress).await {
                    return End::Close;
                }
            }
            buffer.reserve(LARGEST_CHUNK);
            match from_client.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return End::Close,
                Ok(_) => {}
            }
        }
    }

    /// Whether the server's side took it.
    async fn write(&mut self, message: &[u8], answer: Answer, progress: Option<Reports>) -> bool {
        // Before it is written, since its answer may be there right after.
        let _ = self.expect.send(Awaited { message: message.to_vec(), answer, progress: progress.clone() });
        let is_written = self.to_server.write_all(message).await.is_ok();
        if is_written {
            advance(progress.as_ref(), Progress::PassedOn);
        }
        is_written
    }
}

/// Reads what the server says until it leaves, and notes at once which messages it has acted on.
async fn hear(
    from_server: &mut OwnedReadHalf,
    expected: &mut UnboundedReceiver<Awaited>,
    shared: &Shared,
    heard: UnboundedSender<(Answer, BytesMut)>,
) {
    let (mut buffer, framing) = (BytesMut::new(), shared.framing);
    loop {
        while let Some(length) = framing.first(&buffer) {
            let message = buffer.split_to(length);
            // The second piece of an answer in chunks is not expected either.
            let expected = if framing.is_unasked(&message) { None } else { expected.try_recv().ok() };
            shared.tell_tap(expected.as_ref().map(|expected| &expected.message[..]), &message);
            let answer = match expected {
                Some(Awaited { answer, progress, .. }) => {
                    advance(progress.as_ref(), Progress::Answered);
                    answer
                }
                None => Answer::Pass,
            };
            let _ = heard.send((answer, message));
        }
        buffer.reserve(LARGEST_CHUNK);
        match from_server.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// Gives the client what the server said, as far as it is to hear of it. What is held back is lost when the server has left.
async fn deliver(
    heard: &mut UnboundedReceiver<(Answer, BytesMut)>,
    to_client: &ToClient,
    has_left: &Gate,
) -> End {
    let mut is_lost = false;
    while let Some((answer, message)) = heard.recv().await {
        let mut last = None;
        match answer {
            Answer::Pass => {}
            Answer::PassAfter(gate) => tokio::select! {
                biased;
                () = gate.cancelled() => {}
                () = has_left.cancelled() => return End::Close,
            },
            Answer::Cut => return End::Close,
            Answer::CutShort => last = Some(message[..message.len().saturating_sub(CUT)].to_vec()),
            Answer::Instead(text) => last = Some(text.into_bytes()),
            Answer::Lose => is_lost = true,
        }
        if let Some(to_client) = to_client.lock().await.as_mut()
            && !is_lost
            && to_client.write_all(last.as_deref().unwrap_or(&message)).await.is_err()
        {
            return End::Close;
        }
        if last.is_some() {
            return End::Close;
        }
    }
    if is_lost {
        // The connection stays open, also where the server closes it.
        std::future::pending::<()>().await;
    }
    End::Close
}

fn advance(progress: Option<&Reports>, to: Progress) {
    if let Some(progress) = progress {
        progress.send_if_modified(|progress| {
            let is_further = to > *progress;
            *progress = to.max(*progress);
            is_further
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::super::{Framing, Proxy};
    use super::*;

    #[tokio::test]
    async fn an_answer_is_delivered_though_its_server_leaves_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap().port(), Framing::Chunks).await;
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                client.read_exact(&mut [0; 3]).await.unwrap();
                // The answer and the end of the connection arrive as one.
                client.write_all(b"answer").await.unwrap();
            }
        });
        for _ in 0..20 {
            let (mut client, mut answer) =
                (TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await.unwrap(), Vec::new());
            client.write_all(b"ask").await.unwrap();
            client.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"answer");
        }
    }
}
