//! Where one message ends and the next begins.

/// What travels through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Commands and replies of Redis, pipelined.
    Resp,
    /// Requests and answers that come one by one, each in one piece, as small HTTP/1.1 exchanges do; and whatever
    /// else is passed on as it comes, such as what a replica is sent.
    Chunks,
}

impl Framing {
    /// The length of the first whole message, if there is one.
    pub(super) fn first(self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Chunks => (!bytes.is_empty()).then_some(bytes.len()),
            Self::Resp => resp_length(bytes),
        }
    }

    /// Whether the server said it on its own, and not in answer to anything.
    pub(super) fn is_unasked(self, message: &[u8]) -> bool {
        // To subscribe is answered by a push as well.
        let is_reply = [&b">3\r\n$10\r\nssubscribe\r\n"[..], b">3\r\n$9\r\nsubscribe\r\n"]
            .iter()
            .any(|reply| message.starts_with(reply));
        self == Self::Resp && message.starts_with(b">") && !is_reply
    }
}

/// The length of a RESP value. Source: the protocol's specification, versions 2 and 3.
fn resp_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|window| window == b"\r\n")? + 2;
    let count = || std::str::from_utf8(&bytes[1..line - 2]).unwrap().parse::<i64>().unwrap();
    let with_text = |length: i64| match usize::try_from(length) {
        Ok(length) => line + length + 2,
        Err(_) => line,
    };
    let values = match bytes[0] {
        b'$' | b'=' | b'!' => {
            let length = with_text(count());
            return (bytes.len() >= length).then_some(length);
        }
        b'*' | b'~' | b'>' => count().max(0),
        b'%' => 2 * count(),
        _ => 0,
    };
    (0..values).try_fold(line, |at, _| Some(at + resp_length(&bytes[at..])?))
}

#[test]
fn the_length_of_resp_values_is_known() {
    for whole in
        ["+OK\r\n", "$-1\r\n", "$3\r\nabc\r\n", "*2\r\n$1\r\na\r\n:5\r\n", "%1\r\n+a\r\n*0\r\n", "_\r\n"]
    {
        assert_eq!(resp_length(whole.as_bytes()), Some(whole.len()), "{whole:?}");
        assert_eq!(resp_length(format!("{whole}+more\r\n").as_bytes()), Some(whole.len()), "{whole:?}");
        for end in 0..whole.len() {
            assert_eq!(resp_length(&whole.as_bytes()[..end]), None, "{:?}", &whole[..end]);
        }
    }
}
