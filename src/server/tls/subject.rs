//! The subject of a certificate, as text that can be compared.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use x509_parser::asn1_rs::ToDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// The attributes with a name of their own: those of RFC 4514, and two more that certificates often have. These two are
/// named as in OpenSSL.
const NAMES: [(&str, &str); 11] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("2.5.4.5", "serialNumber"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// The subject of a client's certificate.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The name in the form of RFC 4514.
    pub name: Arc<str>,
    /// When the certificate ends. It was verified when the connection began, and the connection may last longer.
    pub ends_at: SystemTime,
}

impl Subject {
    /// `None` if the certificate has no subject.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let name = Arc::from(subject(certificate)?);
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let ends_s = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
        Some(Self { name, ends_at: SystemTime::UNIX_EPOCH + Duration::from_secs(ends_s) })
    }
}

/// The subject of a certificate in the form of RFC 4514: `CN=billing,OU=jobs,O=Example`. `None` if it is empty.
fn subject(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(text(certificate.subject())?).filter(|text| !text.is_empty())
}

/// Two names have the same text only if they are the same. A client must not be able to look like another by a
/// certificate with odd characters.
fn text(name: &X509Name<'_>) -> Option<String> {
    let mut parts = Vec::new();
    for part in name.iter() {
        let attributes: Option<Vec<_>> = part.iter().map(attribute).collect();
        parts.push(attributes?.join("+"));
    }
    parts.reverse();
    Some(parts.join(","))
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> Option<String> {
    let number = attribute.attr_type().to_id_string();
    let name = NAMES.iter().find(|(known, _)| *known == number).map(|(_, name)| name);
    if let (Some(name), Ok(value)) = (name, attribute.as_str()) {
        return Some(format!("{name}={}", escaped(value)));
    }
    // A value that cannot be written as text is written as bytes.
    let mut told = format!("{number}=#");
    for byte in attribute.attr_value().to_der_vec().ok()? {
        write!(told, "{byte:02x}").ok()?;
    }
    Some(told)
}

fn escaped(value: &str) -> String {
    let last = value.chars().count().saturating_sub(1);
    let mut text = String::with_capacity(value.len());
    for (at, character) in value.chars().enumerate() {
        match character {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => text.extend(['\\', character]),
            '#' if at == 0 => text.push_str("\\#"),
            ' ' if at == 0 || at == last => text.push_str("\\ "),
            // The name goes into logs, where each line must stay one line.
            _ if character.is_control() => {
                for byte in character.to_string().bytes() {
                    text.push_str(&format!("\\{byte:02X}"));
                }
            }
            _ => text.push(character),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_a_value_is_escaped() {
        for (value, text) in [
            ("billing", "billing"),
            ("", ""),
            ("a,O=root", "a\\,O=root"),
            ("a+CN=b", "a\\+CN=b"),
            ("back\\slash", "back\\\\slash"),
            ("#dead", "\\#dead"),
            ("a#b", "a#b"),
            (" a b ", "\\ a b\\ "),
            (" ", "\\ "),
            ("a\nb\0", "a\\0Ab\\00"),
            ("\u{85}", "\\C2\\85"),
            ("Zoë 福", "Zoë 福"),
        ] {
            assert_eq!(escaped(value), text);
        }
    }
}
