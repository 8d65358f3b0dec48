//! Bytes behind a request of HTTP/1 that is being answered: they do not hide that the client has left, and they are the
//! next request once it is answered.

use super::*;

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Closes,
    HalfCloses,
    Resets,
}

/// One that has left is kept: dropped, it would be closed as well.
async fn leave(mut client: TcpStream, leaves: Leaves) -> Option<TcpStream> {
    match leaves {
        Leaves::Closes => return None,
        Leaves::HalfCloses => client.shutdown().await.unwrap(),
        Leaves::Resets => {
            socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
            return None;
        }
    }
    Some(client)
}

/// Requests that take this many fields: their answers are numbers.
fn numbered(fields: usize) -> Vec<u8> {
    let fields: String = (1..fields).map(|n| format!("x-{n}: {n}\r\n")).collect();
    format!("GET /headers HTTP/1.1\r\nHost: t\r\n{fields}\r\n").into_bytes()
}

#[tokio::test]
async fn a_client_that_leaves_drops_its_handler_whatever_it_sent_behind_its_request() {
    let server = TestServer::start(settings(|_| {})).await;
    let chunked = |pieces: &str| {
        let head = "POST /hang HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
        format!("{head}{pieces}").into_bytes()
    };
    let mut count = 0;
    for request in [
        GET_HANG.to_vec(),
        b"POST /hang HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc".to_vec(),
        chunked("0\r\n\r\n"),
        chunked("3;x=y\r\na\nb\r\n0A\r\n0\r\n\r\n\r\n0\r\n\r\n00\r\nA: b\r\n\r\n"),
        chunked("0\r\nContent-Length: 9\r\n\r\n"),
    ] {
        for behind in
            [&b"\r\n"[..], b"\n", b"x", &GET[..9], GET, GET_HANG, &GET.repeat(600), &GET.repeat(3_000)]
        {
            for leaves in [Leaves::Closes, Leaves::HalfCloses, Leaves::Resets] {
                for comes_later in [false, true] {
                    count += 1;
                    let mut client = server.connect().await;
                    if comes_later {
                        client.write_all(&request).await.unwrap();
                        server.until_begun(count).await;
                        client.write_all(behind).await.unwrap();
                    } else {
                        client.write_all(&[&request, behind].concat()).await.unwrap();
                        server.until_begun(count).await;
                    }
                    let _left = leave(client, leaves).await;
                    server.until_dropped(count, PATIENCE).await;
                }
            }
        }
    }
    assert_eq!(server.hanging.begun.load(Ordering::SeqCst), count, "none was begun for one that had left");
}

#[tokio::test]
async fn requests_that_come_together_are_answered_in_their_order() {
    let server = TestServer::start(settings(|_| {})).await;
    let all: Vec<u8> = (1..40).flat_map(|n| [numbered(n), b"\r\n".to_vec()].concat()).collect();
    for pieces in [1, 2, 3, 17, 100, 4_096, all.len()] {
        let mut client = server.connect().await;
        client.set_nodelay(true).unwrap();
        let (mut reader, mut writer) = client.split();
        let send = async {
            for piece in all.chunks(pieces) {
                writer.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let read = async {
            for number in 1..40 {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(reader.read_u8().await.unwrap());
                }
                let mut body = vec![0; number.to_string().len()];
                reader.read_exact(&mut body).await.unwrap();
                assert_eq!(String::from_utf8(body).unwrap(), number.to_string());
            }
        };
        timeout(PATIENCE, async { tokio::join!(send, read) }).await.expect("one is not answered");
        get_ok(&mut client).await;
    }
}

/// Split at each byte, also within the second.
#[tokio::test]
async fn two_requests_in_two_pieces_are_answered_wherever_they_are_split() {
    let server = TestServer::start(settings(|_| {})).await;
    let post = b"POST /length HTTP/1.1\r\nHost: t\r\nContent-Length: 12\r\n\r\nGET / HTTP\r\n";
    let all = [&post[..], b"\r\n", &numbered(3)].concat();
    let mut client = server.connect().await;
    client.set_nodelay(true).unwrap();
    for split in 0..=all.len() {
        client.write_all(&all[..split]).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        client.write_all(&all[split..]).await.unwrap();
        for body in ["12", "3"] {
            let answer = timeout(PATIENCE, read_response(&mut client)).await.expect("no answer").unwrap();
            assert_eq!(answer.1, body, "split at {split}");
        }
    }
}

/// More than is kept: the rest is read when there is room.
#[tokio::test]
async fn many_requests_behind_a_slow_one_are_answered_once_it_is() {
    const MANY: usize = 3_000;
    let server = TestServer::start(settings(|_| {})).await;
    let mut client = server.connect().await;
    let slow = b"GET /slow HTTP/1.1\r\nHost: t\r\n\r\n";
    client.write_all(&[&slow[..], &GET.repeat(MANY)].concat()).await.unwrap();
    for body in std::iter::once("slow").chain(std::iter::repeat_n("ok", MANY)) {
        let answer = timeout(PATIENCE, read_response(&mut client)).await.expect("no answer").unwrap();
        assert_eq!(answer.1, body);
    }
}

/// What needs no waiting is answered, also if its client has said at once that it sends nothing more.
#[tokio::test]
async fn requests_of_a_client_that_half_closes_at_once_are_answered() {
    let server = TestServer::start(settings(|_| {})).await;
    for count in [1, 2, 5] {
        let mut client = server.connect().await;
        client.write_all(&GET.repeat(count)).await.unwrap();
        client.shutdown().await.unwrap();
        let answers = String::from_utf8(read_to_close(&mut client).await).unwrap();
        assert_eq!(answers.matches("HTTP/1.1 200").count(), count, "{answers}");
    }
}
