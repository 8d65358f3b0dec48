//! A record as scripts reply it, read.

use bytes::Bytes;
use redis::{FromRedisValue, ParsingError, Value};

use crate::lock::{FencingToken, Lease, Note, TokenHash};
use crate::once::{
    Fingerprint, NotWorker, Place, RecordView, ResultView, Stored, WorkResult, WorkState, WorkStatus, Worker,
};

/// What a script replies: an outcome by number, then a text and lengths of time in ms, as far as there are some. A number
/// alone is that of a new grant, and a text alone is a result, behind a line with both of its lengths.
pub(super) struct RecordReply {
    pub(super) outcome: i64,
    text: Vec<u8>,
    lengths: Vec<u64>,
}

impl RecordReply {
    fn of_result(mut text: Vec<u8>) -> Option<Self> {
        let end = text.iter().position(|byte| *byte == b'\n')?;
        let lengths = std::str::from_utf8(&text[..end]).ok()?.split(' ');
        let lengths = lengths.map(str::parse).collect::<Result<_, _>>().ok()?;
        text.drain(..=end);
        Some(Self { outcome: 4, text, lengths })
    }

    /// One of the lengths.
    pub(super) fn length(&self, at: usize) -> Option<u64> {
        self.lengths.get(at).copied()
    }

    /// The token and the number of the grant with which the text begins, as a record does.
    pub(super) fn grant(&self) -> Option<(&str, FencingToken)> {
        let mut fields = self.text.splitn(4, |byte| *byte == b' ').map(std::str::from_utf8);
        let token = fields.next()?.ok()?.get(1..)?;
        let number = fields.nth(1)?.ok()?.parse().ok()?;
        Some((token, FencingToken::new(number)?))
    }

    /// The number of a grant, where the text is one.
    pub(super) fn number(&self) -> Option<FencingToken> {
        FencingToken::new(std::str::from_utf8(&self.text).ok()?.parse().ok()?)
    }

    /// Why the token is not the worker, where the outcome says so.
    pub(super) fn not_worker(&self) -> Option<NotWorker> {
        let superseded =
            |is_done| self.number().map(|fencing_token| NotWorker::Superseded { fencing_token, is_done });
        match self.outcome {
            2 => Some(NotWorker::NotBegun),
            3 => superseded(false),
            4 => superseded(true),
            _ => None,
        }
    }

    /// What `look.lua` tells of a record to everybody, and to this token; `None` where it tells of none, or of one that no script
    /// of ours wrote.
    pub(super) fn view(self, token: Option<&TokenHash>) -> Option<RecordView> {
        let is_running = self.outcome == 2;
        let is_there = is_running || self.outcome == 0;
        self.record().filter(|_| is_there).map(|record| record.view(token, is_running))
    }

    /// The record that is told; `None` if no script of ours wrote it.
    pub(super) fn record(self) -> Option<SeenRecord> {
        let (ms, life_ms, bytes) = (self.length(0)?, self.length(1)?, self.length(2));
        SeenRecord::read(self.text, ms, life_ms, bytes)
    }
}

impl FromRedisValue for RecordReply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        if let Value::Int(number) = value {
            return Ok(Self { outcome: 0, text: number.to_string().into_bytes(), lengths: Vec::new() });
        }
        if let Value::BulkString(text) = value {
            return Self::of_result(text).ok_or_else(|| "a result without its lengths".into());
        }
        let Value::Array(fields) = value else { return Err("a reply that is no array".into()) };
        let mut fields = fields.into_iter();
        let Some(Value::Int(outcome)) = fields.next() else {
            return Err("a reply without an outcome".into());
        };
        let mut reply = Self { outcome, text: Vec::new(), lengths: Vec::new() };
        for field in fields {
            match field {
                Value::BulkString(text) => reply.text = text,
                Value::Int(length) => reply.lengths.push(u64::try_from(length).unwrap_or(0)),
                _ => return Err("a reply with what is neither a text nor a length".into()),
            }
        }
        Ok(reply)
    }
}

/// A record, read from its head or from the whole of it.
pub(super) struct SeenRecord {
    token: TokenHash,
    place: Place,
    fingerprint: Option<Fingerprint>,
    /// For how much longer the record lives.
    life_ms: u64,
    done: Option<Done>,
}

/// What only a record has that is done.
struct Done {
    age_ms: u64,
    /// How long its body is, where only its head was read.
    bytes: Option<u64>,
    result: WorkResult,
}

impl SeenRecord {
    /// `ms` is what is left of the lease; or the age of the result. What they look like stands in `record.lua`.
    pub(super) fn read(text: Vec<u8>, ms: u64, life_ms: u64, bytes: Option<u64>) -> Option<Self> {
        let text = Bytes::from(text);
        let mut lines = text.splitn(3, |byte| *byte == b'\n');
        let (header, content_type, body) = (lines.next()?, lines.next(), lines.next());
        let (is_done, fields) = match std::str::from_utf8(header).ok()?.split_at_checked(1)? {
            ("w", fields) => (false, fields),
            ("d", fields) => (true, fields),
            _ => return None,
        };
        let mut fields = fields.splitn(if is_done { 10 } else { 9 }, ' ');
        let token = TokenHash::parse(fields.next()?)?;
        let _attempt = fields.next()?;
        let fencing_token = FencingToken::new(fields.next()?.parse().ok()?)?;
        let _at_ms = fields.next()?;
        let earlier = fields.next()?.parse().ok()?;
        let _keep_ms = fields.next()?;
        let fingerprint = match fields.next()? {
            "-" => None,
            digits => Some(Fingerprint::parse(digits)?),
        };
        let earlier_fencing_token = FencingToken::new(fields.next()?.parse().ok()?);
        let done = match is_done {
            false => None,
            true => {
                let status = match fields.next()? {
                    "-" => None,
                    status => Some(WorkStatus::new(status.parse().ok()?)?),
                };
                let content_type = std::str::from_utf8(content_type?).ok()?;
                let content_type = (!content_type.is_empty()).then(|| content_type.to_owned());
                let body = text.slice_ref(body?);
                Some(Done { age_ms: ms, bytes, result: WorkResult { status, content_type, body } })
            }
        };
        let lease = Lease {
            fencing_token,
            left_ms: if is_done { 0 } else { ms },
            note: Note::from_stored(fields.next()?.trim_end_matches('\t'))?,
            is_released: token == TokenHash::NOBODY,
            slot: None,
        };
        Some(Self {
            token,
            place: Place { lease, earlier, earlier_fencing_token },
            fingerprint,
            life_ms,
            done,
        })
    }

    pub(super) fn place(self) -> Place {
        self.place
    }

    pub(super) fn worker(self) -> Worker {
        Worker { token: self.token, place: self.place, fingerprint: self.fingerprint }
    }

    /// Whether it has the result of the grant of this number.
    pub(super) fn is_result_of(&self, number: FencingToken) -> bool {
        self.done.is_some() && number == self.place.lease.fencing_token
    }

    /// The result, where the whole record was read.
    pub(super) fn stored(self) -> Option<Stored> {
        let Done { age_ms, result, .. } = self.done?;
        let (fencing_token, fingerprint) = (self.place.lease.fencing_token, self.fingerprint);
        Some(Stored { fencing_token, age_ms, kept_ms: self.life_ms, fingerprint, result })
    }

    /// What everybody may see, and whether it is this token's.
    fn view(self, token: Option<&TokenHash>, is_running: bool) -> RecordView {
        let state = match self.done {
            Some(_) => WorkState::Done,
            None if is_running => WorkState::Working,
            None => WorkState::Lapsed,
        };
        let result = self.done.map(|Done { age_ms, bytes, result }| ResultView {
            age_ms,
            bytes: bytes.unwrap_or(result.body.len() as u64),
            status: result.status,
            content_type: result.content_type,
        });
        let yours = token.map(|token| *token == self.token);
        RecordView { state, place: self.place, yours, result, forgotten_in_ms: self.life_ms }
    }
}
