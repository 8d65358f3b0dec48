//! What a server answers, and how that is written: RESP2 and RESP3 write some of it differently.

use std::borrow::Cow;

/// One reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Status(Cow<'static, str>),
    /// With its code as the first word.
    Error(Cow<'static, str>),
    Int(i64),
    Bulk(Vec<u8>),
    /// A text for people, such as that of `INFO`.
    Verbatim(String),
    Nil,
    Double(f64),
    Array(Vec<Reply>),
    /// Pairs, one after the other.
    Map(Vec<Reply>),
    /// Members with their scores.
    Scored(Vec<(Vec<u8>, f64)>),
    /// What nobody has asked for.
    Push(Vec<Reply>),
}

impl Reply {
    pub const OK: Self = Self::status("OK");

    pub const fn status(text: &'static str) -> Self {
        Self::Status(Cow::Borrowed(text))
    }

    pub const fn error(text: &'static str) -> Self {
        Self::Error(Cow::Borrowed(text))
    }

    pub fn failed(text: String) -> Self {
        Self::Error(Cow::Owned(text))
    }

    pub fn bulk(text: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(text.into())
    }

    /// The value, or that there is none.
    pub fn maybe(value: Option<Vec<u8>>) -> Self {
        value.map_or(Self::Nil, Self::Bulk)
    }

    pub fn flag(is_so: bool) -> Self {
        Self::Int(i64::from(is_so))
    }

    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// Writes it as a server does on a connection of this version of the protocol.
    pub fn write(&self, out: &mut Vec<u8>, is_resp3: bool) {
        match self {
            Self::Status(text) => line(out, b'+', text.as_bytes()),
            Self::Error(text) => line(out, b'-', text.as_bytes()),
            Self::Int(number) => line(out, b':', number.to_string().as_bytes()),
            Self::Bulk(bytes) => bulk(out, b'$', b"", bytes),
            Self::Verbatim(text) if is_resp3 => bulk(out, b'=', b"txt:", text.as_bytes()),
            Self::Verbatim(text) => bulk(out, b'$', b"", text.as_bytes()),
            Self::Nil if is_resp3 => line(out, b'_', b""),
            Self::Nil => line(out, b'$', b"-1"),
            Self::Double(number) if is_resp3 => line(out, b',', double(*number).as_bytes()),
            Self::Double(number) => bulk(out, b'$', b"", double(*number).as_bytes()),
            Self::Array(replies) => all(out, b'*', replies.len(), replies, is_resp3),
            Self::Map(replies) if is_resp3 => all(out, b'%', replies.len() / 2, replies, true),
            Self::Map(replies) => all(out, b'*', replies.len(), replies, false),
            Self::Push(replies) => {
                all(out, if is_resp3 { b'>' } else { b'*' }, replies.len(), replies, is_resp3);
            }
            Self::Scored(members) => {
                let each = if is_resp3 { 1 } else { 2 };
                line(out, b'*', (members.len() * each).to_string().as_bytes());
                for (member, score) in members {
                    if is_resp3 {
                        line(out, b'*', b"2");
                    }
                    bulk(out, b'$', b"", member);
                    Self::Double(*score).write(out, is_resp3);
                }
            }
        }
    }
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

fn bulk(out: &mut Vec<u8>, kind: u8, label: &[u8], bytes: &[u8]) {
    line(out, kind, (label.len() + bytes.len()).to_string().as_bytes());
    out.extend_from_slice(label);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn all(out: &mut Vec<u8>, kind: u8, count: usize, replies: &[Reply], is_resp3: bool) {
    line(out, kind, count.to_string().as_bytes());
    for reply in replies {
        reply.write(out, is_resp3);
    }
}

/// A number as C writes it by `%.17g`, which is how Redis writes scores, and Lua's numbers where they are arguments.
pub fn double(number: f64) -> String {
    const DIGITS: usize = 17;
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number.is_nan() {
        return if number.is_sign_negative() { "-nan" } else { "nan" }.to_owned();
    }
    if number == number.trunc() && number.abs() < 1e17 {
        let sign = if number == 0.0 && number.is_sign_negative() { "-" } else { "" };
        return format!("{sign}{}", number as i64);
    }
    let scientific = format!("{number:.*e}", DIGITS - 1);
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let shortened = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if !(-4..DIGITS as i32).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", shortened(digits), exponent.abs());
    }
    let decimals = usize::try_from(DIGITS as i32 - 1 - exponent).unwrap_or(0);
    shortened(&format!("{number:.decimals$}"))
}
