//! Client certificates that stand for a key.

use std::time::{Duration, SystemTime};

use rcgen::{DistinguishedName, DnType};

use kit::certificates::Certificates;
use kit::http::Answer;
use kit::secure::{SecureClient, call};
use kit::{Gateway, KeysFile, eventually};

fn named(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_stands_for_the_key_that_names_its_subject() {
    let mut file = KeysFile::new();
    let lines = "tls_subjects = [\"CN=billing\"]\nprefixes = [\"bills\"]\nallow = [\"acquire\"]";
    file.add("billing", lines);
    let other = file.add_for_all("other", "\"acquire\"");
    // The first has no secret besides.
    let hash = file.text().split("secret_sha256 = \"").nth(1).unwrap()[..64].to_owned();
    file.change("billing", &format!("secret_sha256 = \"{hash}\"\n"), "");
    file.write();
    let certificates = Certificates::new();
    let (flag, authority) = (file.flag(), certificates.authority());
    let (certificate, key) = (certificates.certificate(), certificates.key());
    let tls = ["--tls-cert", &certificate, "--tls-key", &key, "--tls-client-ca", &authority];
    let gateway = Gateway::start(&[&["--store", "memory:", &flag[0], &flag[1]], &tls[..]].concat()).await;
    let client = |name: &str| {
        let own = certificates.client(name, named(name));
        SecureClient::with(&certificates, Some(own))
    };
    let mut billing = client("billing").connect(gateway.address).await.unwrap();
    let mut ask = async |lock: &str, headers: &str| -> Answer {
        call(&mut billing, "PUT", &format!("/locks/{lock}"), headers).await.unwrap()
    };
    ask("bills%2F1", "").await.expect(201);
    ask("billing", "").await.expect_problem(403, "right-missing");
    // A key that is shown is what counts.
    ask("billing", &format!("Authorization: Bearer {other}\r\n")).await.expect(201);
    ask("bills", "Authorization: Bearer nonsense\r\n").await.expect_problem(401, "key-refused");
    let own = certificates.client_with("ending", named("billing"), |params| {
        params.not_after = (SystemTime::now() + Duration::from_secs(5)).into();
    });
    let ending = SecureClient::with(&certificates, Some(own));
    let mut ending = ending.connect(gateway.address).await.unwrap();
    call(&mut ending, "PUT", "/locks/bills%2F3", "").await.unwrap().expect(201);
    let ended = async || {
        let answer = call(&mut ending, "GET", "/locks/bills%2F3", "").await.unwrap();
        answer.status == 401 && answer.json()["detail"].as_str().unwrap().contains("certificate")
    };
    eventually("its certificate has ended", ended).await;
    let mut stranger = client("stranger").connect(gateway.address).await.unwrap();
    let answer = call(&mut stranger, "PUT", "/locks/bills", "").await.unwrap();
    answer.expect_problem(401, "key-required");
    file.remove("billing");
    file.write();
    let refused = async || ask("bills%2F2", "").await.status == 401;
    eventually("the subject stands for no key any more", refused).await;
}
