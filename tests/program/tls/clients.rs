//! Certificates that clients show: who they are, in which words, and who is not let in.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::routing::get;
use axum::{Extension, Router};
use fencepost::server::{Peer, ServerSettings, Tls, TlsFiles, serve};
use rcgen::{DistinguishedName, DnType, DnValue};
use rustls::HandshakeKind;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{curl, gateway_with};
use kit::certificates::Certificates;
use kit::secure::{SecureClient, call};

/// A server that says whom the client's certificate names, and what it reads its certificates with.
async fn who_am_i(certificates: &Certificates, authorities: &str) -> (SocketAddr, Tls) {
    let tls = Tls::load(TlsFiles {
        certificate: certificates.certificate().into(),
        key: certificates.key().into(),
        client_authorities: Some(authorities.into()),
    })
    .unwrap();
    let who = async |Extension(peer): Extension<Arc<Peer>>| match &peer.subject {
        Some(subject) => format!("it is {}", subject.name),
        None => "nobody".to_owned(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let settings = ServerSettings { tls: Some(tls.clone()), ..ServerSettings::default() };
    let app = Router::new().route("/", get(who));
    tokio::spawn(serve(listener, app, settings, CancellationToken::new()));
    (address, tls)
}

async fn ask(client: &SecureClient, address: SocketAddr) -> std::io::Result<String> {
    let mut stream = client.connect(address).await?;
    let answer = call(&mut stream, "GET", "/", "").await?;
    Ok(String::from_utf8(answer.body.to_vec()).unwrap())
}

fn name(parts: &[(DnType, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for (kind, value) in parts {
        name.push(kind.clone(), *value);
    }
    name
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_names_its_client_as_rfc_4514_writes_it() {
    let certificates = Certificates::new();
    let (address, _) = who_am_i(&certificates, &certificates.authority()).await;
    assert_eq!(ask(&SecureClient::new(&certificates), address).await.unwrap(), "nobody");
    let (country, organization, unit, common) =
        (DnType::CountryName, DnType::OrganizationName, DnType::OrganizationalUnitName, DnType::CommonName);
    let serial = DnType::CustomDnType(vec![2, 5, 4, 5]);
    let unheard_of = DnType::CustomDnType(vec![1, 2, 3, 4]);
    let mut old_text = DistinguishedName::new();
    old_text.push(common.clone(), DnValue::TeletexString("x".try_into().unwrap()));
    let cases = [
        (name(&[(common.clone(), "billing")]), "it is CN=billing"),
        (
            name(&[(country, "DE"), (organization, "Ex, Inc."), (unit, "jobs"), (common.clone(), "Zoë")]),
            "it is CN=Zoë,OU=jobs,O=Ex\\, Inc.,C=DE",
        ),
        // Whoever may choose a name cannot be somebody else by it.
        (name(&[(common.clone(), "me,O=root")]), "it is CN=me\\,O=root"),
        (name(&[(common, " #1\n")]), "it is CN=\\ #1\\0A"),
        (name(&[(serial, "7")]), "it is serialNumber=7"),
        (name(&[(unheard_of, "a")]), "it is 1.2.3.4=#0c0161"),
        (old_text, "it is 2.5.4.3=#140178"),
        (DistinguishedName::new(), "nobody"),
    ];
    for (number, (name, expected)) in cases.into_iter().enumerate() {
        let own = certificates.client(&format!("client{number}"), name);
        let client = SecureClient::with(&certificates, Some(own));
        assert_eq!(ask(&client, address).await.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_or_of_another_time_is_not_let_in() {
    let certificates = Certificates::new();
    let (address, _) = who_am_i(&certificates, &certificates.authority()).await;
    let billing = || name(&[(DnType::CommonName, "billing")]);
    let strangers = Certificates::new();
    let stranger = strangers.client("stranger", billing());
    let over = certificates.client_with("over", billing(), |params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    let early = certificates.client_with("early", billing(), |params| {
        params.not_before = rcgen::date_time_ymd(2100, 1, 1);
        params.not_after = rcgen::date_time_ymd(2101, 1, 1);
    });
    let for_servers = certificates.client_with("for-servers", billing(), |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    for (whose, own) in
        [("stranger", stranger), ("over", over), ("early", early), ("for servers", for_servers)]
    {
        let client = SecureClient::with(&certificates, Some(own));
        assert!(ask(&client, address).await.is_err(), "{whose} was let in");
    }
}

/// A session that is resumed is not verified again.
#[tokio::test(flavor = "multi_thread")]
async fn each_connection_shows_its_certificate_anew_and_authorities_are_reloaded() {
    let certificates = Certificates::new();
    let authorities = certificates.path("authorities.pem");
    std::fs::copy(certificates.authority(), &authorities).unwrap();
    let (address, tls) = who_am_i(&certificates, &authorities).await;
    let own = certificates.client("client", name(&[(DnType::CommonName, "billing")]));
    let client = SecureClient::with(&certificates, Some(own));
    let mut kept = client.connect(address).await.unwrap();
    for _ in 0..3 {
        let mut stream = client.connect(address).await.unwrap();
        let answer = call(&mut stream, "GET", "/", "").await.unwrap();
        assert_eq!(answer.body, "it is CN=billing".as_bytes());
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
    }
    std::fs::copy(Certificates::new().authority(), &authorities).unwrap();
    tls.read_again().unwrap()().unwrap();
    assert!(ask(&client, address).await.is_err(), "its authority is no longer trusted");
    assert_eq!(ask(&SecureClient::new(&certificates), address).await.unwrap(), "nobody");
    // What was verified when it began goes on.
    let answer = call(&mut kept, "GET", "/", "").await.unwrap();
    assert_eq!(answer.body, "it is CN=billing".as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_shows_a_certificate_to_a_gateway_that_asks_for_one() {
    let certificates = Certificates::new();
    let authority = certificates.authority();
    let keys = certificates.path("keys.toml");
    let key = "[[key]]\nid = \"billing00001\"\nname = \"billing\"\ntls_subjects = [\"CN=billing\"]\nevery_key = true\nallow = [\"acquire\"]\n";
    std::fs::write(&keys, key).unwrap();
    let asks = ["--tls-client-ca", &authority, "--keys", &keys, "--log-level", "debug"];
    let gateway = gateway_with(&certificates, &asks).await;
    let (own, key) = certificates.client("client", name(&[(DnType::CommonName, "billing")]));
    let trust = ["--cacert", &authority];
    let good = curl(&gateway, "/healthz", &[&trust[..], &["--cert", &own, "--key", &key]].concat());
    assert!(good.status.success(), "{good:?}");
    assert!(curl(&gateway, "/healthz", &trust).status.success());
    let strangers = Certificates::new();
    let (own, key) = strangers.client("stranger", name(&[(DnType::CommonName, "billing")]));
    let bad = curl(&gateway, "/healthz", &[&trust[..], &["--cert", &own, "--key", &key]].concat());
    assert!(!bad.status.success(), "{bad:?}");
    gateway.logs("the log says so", |line| line.contains("handshake failed")).await;
}
