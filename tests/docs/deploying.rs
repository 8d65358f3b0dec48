//! What the pages on deploying have besides proxies: units, manifests and certificates, judged by what would use them.

use std::process::{Command, Stdio};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::pages::{Said, file, snippet};
use kit::Gateway;
use kit::gateway::program;
use kit::http::{parse, raw};
use kit::keys::KeysFile;
use kit::metrics::metrics_address;

const TLS: &str = include_str!("../../docs/deploying/tls.md");
const METRICS: &str = include_str!("../../docs/operations/metrics.md");
/// The versions of Kubernetes that the page names.
const VERSIONS: [&str; 2] = ["1.30", "1.34"];

#[tokio::test(flavor = "multi_thread")]
async fn systemd_takes_the_unit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fencepost.service");
    std::fs::write(&path, file("fencepost.service").replace("/usr/local/bin/fencepost", program())).unwrap();
    let verify =
        tokio::process::Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
    let said = Said::of(verify.await.expect("systemd-analyze must be installed: `make tools`"));
    assert!(said.code == Some(0) && !said.text.contains("fencepost.service"), "{said:?}");
}

/// The documents of a manifest, each valid by the strict schemas of Kubernetes: without a field that it does not know.
pub async fn manifests(text: &str) -> Vec<Value> {
    let script = format!(
        "import json, sys, yaml, kubernetes_validate as k8s
documents = list(yaml.safe_load_all(sys.stdin))
for document in documents:
    for version in {VERSIONS:?}:
        k8s.validate(document, version, strict=True)
json.dump(documents, sys.stdout)"
    );
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/target/manifests/venv/bin/python");
    let mut command = tokio::process::Command::new(python);
    command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("what checks manifests must be installed: `make clients`");
    child.stdin.take().unwrap().write_all(text.as_bytes()).await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_takes_the_manifests_and_their_parts_find_each_other() {
    let all = manifests(&file("fencepost.yaml")).await;
    let kinds: Vec<_> = all.iter().map(|document| document["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["Deployment", "Service", "Service", "PodDisruptionBudget"]);
    let [deployment, service, alive, budget] = &all[..] else { unreachable!() };
    let pod = &deployment["spec"]["template"];
    let labels = &pod["metadata"]["labels"];
    assert_eq!(&deployment["spec"]["selector"]["matchLabels"], labels);
    assert_eq!((&service["spec"]["selector"], &budget["spec"]["selector"]["matchLabels"]), (labels, labels));
    // Held locks can be renewed by the second one while no gateway is ready.
    assert_eq!((&alive["spec"]["selector"], &alive["spec"]["ports"]), (labels, &service["spec"]["ports"]));
    assert_eq!(
        (alive["spec"]["publishNotReadyAddresses"].as_bool(), &service["spec"]["publishNotReadyAddresses"]),
        (Some(true), &Value::Null)
    );
    let replicas = deployment["spec"]["replicas"].as_u64().unwrap();
    assert!(replicas >= 2 && budget["spec"]["minAvailable"].as_u64().unwrap() < replicas);
    // What a stop takes at most: the pause before, the drain, and what is left to do after it.
    let container = &pod["spec"]["containers"][0];
    let pause = container["lifecycle"]["preStop"]["exec"]["command"][1].as_str().unwrap();
    let grace = pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > pause.parse::<u64>().unwrap() + 10 + 6, "{grace}");
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
    // Else a drain of a node would wait for a gateway that is not ready for as long as Redis is away.
    assert_eq!(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    let [state, service] = &manifests(&file("fencepost-file.yaml")).await[..] else {
        panic!("two documents")
    };
    assert_eq!((&state["kind"], &state["spec"]["replicas"]), (&"StatefulSet".into(), &1.into()));
    assert_eq!(state["spec"]["serviceName"], service["metadata"]["name"]);
    assert_eq!(service["spec"]["selector"], state["spec"]["template"]["metadata"]["labels"]);
    let typo = file("fencepost.yaml").replace("readinessProbe", "readynessProbe");
    let refused = tokio::spawn(async move { manifests(&typo).await }).await;
    assert!(refused.is_err(), "a field that Kubernetes does not know");
}

/// A restart would end the holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_connections_are_all_taken_answers_the_probe_by_which_kubernetes_would_restart_it() {
    let full =
        ["--max-connections", "2", "--max-connections-per-address", "2", "--metrics-listen", "127.0.0.1:0"];
    let gateway = Gateway::start(&[&["--store", "memory:"], &full[..]].concat()).await;
    let mut taken = Vec::new();
    for asked in ["POST /hold?key=a", "GET /healthz"] {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        let request = format!("{asked} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        taken.push(stream);
    }
    for name in ["fencepost.yaml", "fencepost-file.yaml"] {
        let document = manifests(&file(name)).await.remove(0);
        let container = &document["spec"]["template"]["spec"]["containers"][0];
        let probe = &container["livenessProbe"]["httpGet"];
        let ports = [("http", gateway.address), ("metrics", metrics_address(&gateway))];
        let (_, address) = ports.iter().find(|(port, _)| probe["port"] == *port).unwrap();
        let path = probe["path"].as_str().unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: 10.0.0.7:9464\r\nConnection: close\r\n\r\n");
        parse(&raw(*address, request.as_bytes()).await).expect(200);
    }
}

/// The ports and labels that the policy and Prometheus ask for are those of the pods.
#[tokio::test(flavor = "multi_thread")]
async fn the_policy_and_prometheus_find_the_pods() {
    let [policy] = &manifests(&file("fencepost-network.yaml")).await[..] else { panic!("one document") };
    let told = crate::recipes::yaml(&file("prometheus-kubernetes.yml")).await;
    let job = &told["scrape_configs"][0];
    assert_eq!(job["job_name"], "fencepost");
    assert_eq!(job["kubernetes_sd_configs"][0]["role"], "pod");
    let kept = job["relabel_configs"][0]["regex"].as_str().unwrap();
    for name in ["fencepost.yaml", "fencepost-file.yaml"] {
        let document = manifests(&file(name)).await.remove(0);
        let pod = &document["spec"]["template"];
        let labels = &pod["metadata"]["labels"];
        assert_eq!(&policy["spec"]["podSelector"]["matchLabels"], labels, "{name}");
        let label = labels["app.kubernetes.io/name"].as_str().unwrap();
        let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
        let ports: Vec<_> = ports.iter().map(|port| port["name"].as_str().unwrap()).collect();
        let rules = policy["spec"]["ingress"].as_array().unwrap();
        let allowed: Vec<_> = rules.iter().map(|rule| rule["ports"][0]["port"].as_str().unwrap()).collect();
        assert_eq!(ports, allowed, "{name}");
        assert!(ports.iter().any(|port| format!("{label};{port}") == kept), "{name}: {kept}");
    }
}

/// Each install page makes a key with which the page on alarms breaks a lock.
#[tokio::test(flavor = "multi_thread")]
async fn the_key_for_operators_breaks_a_lock_as_the_page_on_alarms_says() {
    for page in ["docs/deploying/systemd.md", "docs/deploying/kubernetes.md"] {
        let directory = tempfile::tempdir().unwrap();
        let bash = |code: &str, address: &str, typed: &str| {
            let code = code.replace("/etc/fencepost/", "").replace("127.0.0.1:8080", address);
            let mut bash = Command::new("bash");
            let bin = std::path::Path::new(program()).parent().unwrap().display();
            let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
            bash.args(["-eu", "-c", &code]).current_dir(directory.path()).env("PATH", path);
            let mut child =
                bash.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            std::io::Write::write_all(child.stdin.as_mut().unwrap(), typed.as_bytes()).unwrap();
            Said::of(child.wait_with_output().unwrap())
        };
        let text = &crate::pages::pages().iter().find(|found| found.name == page).unwrap().text;
        for key in ["--name first", "--name ops"] {
            let line =
                text.lines().find(|line| line.contains(key)).unwrap_or_else(|| panic!("{page}: {key}"));
            bash(line.trim().trim_start_matches("$ "), "", "").expect(0, "");
        }
        bash(&file("make-ops-curl"), "", "").expect(0, "");
        let keys = directory.path().join("keys.toml").display().to_string();
        let gateway = Gateway::start(&["--store", "memory:", "--keys", &keys]).await;
        let address = gateway.address.to_string();
        let first = std::fs::read_to_string(directory.path().join("first.key")).unwrap();
        let client = kit::Client::new(gateway.address);
        let authorization = format!("Bearer {}", first.trim());
        let held = client.put("/lock?key=nightly-report&ttl=1m").header("Authorization", &authorization);
        let number = held.send().await.expect(201).json()["fencing_token"].to_string();
        bash(&file("break-lock"), &address, &format!("{number}\n")).expect(0, &number);
        let seen =
            client.get("/lock?key=nightly-report").header("Authorization", &authorization).send().await;
        seen.expect_problem(404, "not-held");
    }
}

/// Each variable is one that the gateway reads, with a value that it takes.
#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_takes_the_settings_of_the_manifests() {
    for name in ["fencepost.yaml", "fencepost-file.yaml"] {
        let document = manifests(&file(name)).await.remove(0);
        let directory = tempfile::tempdir().unwrap();
        let mut keys = KeysFile::new();
        keys.add_for_all("first", "\"acquire\"");
        keys.write();
        std::fs::copy(keys.path(), directory.path().join("keys.toml")).unwrap();
        std::fs::write(directory.path().join("redis-password"), "secret\n").unwrap();
        let place = directory.path().to_str().unwrap();
        let mut command = Command::new(program());
        command.env("FENCEPOST_LISTEN", "127.0.0.1:0").current_dir(directory.path());
        let container = &document["spec"]["template"]["spec"]["containers"][0];
        for variable in container["env"].as_array().unwrap() {
            let value = variable["value"].as_str().unwrap().replace("/etc/fencepost", place);
            let value = value.replace("/data", place).replace("0.0.0.0:9464", "127.0.0.1:0");
            command.env(variable["name"].as_str().unwrap(), value);
        }
        Gateway::try_start_by(command, &[]).await.unwrap_or_else(|said| panic!("{name}: {said:#?}"));
    }
}

/// What is pasted from the page on TLS makes certificates that the gateway serves, and that `curl` and `run` accept.
#[tokio::test(flavor = "multi_thread")]
async fn the_certificates_of_the_page_are_accepted_by_curl_and_by_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let mut printed = String::new();
    let paste = |snippet: &str| {
        let mut bash = Command::new("bash");
        let bin = std::path::Path::new(program()).parent().unwrap().display();
        let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
        bash.args(["-eu", "-c", snippet]).current_dir(directory.path()).env("PATH", path);
        Said::of(bash.output().unwrap()).expect(0, "")
    };
    for snippet in TLS.split("```bash\n").skip(1).map(|part| part.split("```").next().unwrap()) {
        paste(snippet);
    }
    let (certificate, key) = (file("try.pem"), file("try-key.pem"));
    let open = Gateway::start(&["--store", "memory:", "--tls-cert", &certificate, "--tls-key", &key]).await;
    let port = open.address.port().to_string();
    for line in snippet("console", "--cacert try.pem").lines() {
        match line.strip_prefix("$ ") {
            Some(command) => printed = paste(&command.replace("8443", &port)).text,
            None => assert_eq!(printed.trim(), line),
        }
    }
    for (certificate, key, authority) in
        [("try.pem", "try-key.pem", "try.pem"), ("server.pem", "server-key.pem", "ca.pem")]
    {
        let (keys, clients) = (file("keys.toml"), file("ca.pem"));
        let (certificate, key, authority) = (file(certificate), file(key), file(authority));
        let tls = ["--store", "memory:", "--tls-cert", &certificate, "--tls-key", &key];
        let gateway =
            Gateway::start(&[&tls[..], &["--keys", &keys, "--tls-client-ca", &clients]].concat()).await;
        let url = format!("https://localhost:{}", gateway.address.port());
        let curl = |args: &[&str], path: &str| {
            let mut curl = Command::new("curl");
            curl.args(["-sS", "-m", "20", "--cacert", &authority]).args(args).arg(format!("{url}{path}"));
            Said::of(curl.output().unwrap())
        };
        curl(&[], "/healthz").expect(0, "ok");
        // The certificate stands for the key of its subject.
        let shown = [file("client.pem"), file("client-key.pem")];
        let shown = ["--cert", &shown[0], "--key", &shown[1], "-X", "PUT"];
        curl(&shown, "/lock?key=billing/a&ttl=1s").expect(0, "\"fencing_token\"");
        curl(&shown, "/lock?key=other&ttl=1s").expect(0, "right-missing");
        let mut run = Command::new(program());
        run.args(["run", "--wait", "0s", "billing/b", "--", "echo", "done"]);
        run.env("FENCEPOST_CA_FILE", &authority).env("FENCEPOST_URL", &url);
        run.env("FENCEPOST_API_KEY_FILE", file("billing.key"));
        Said::of(run.output().unwrap()).expect(0, "done\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_is_told_of_the_job_that_the_alarms_are_about() {
    let (_, page) = METRICS.split_once("```yaml file=prometheus.yml\n").unwrap();
    let told = crate::recipes::yaml(page.split("```").next().unwrap()).await;
    let job = &told["scrape_configs"][0];
    assert_eq!(job["job_name"], "fencepost");
    assert!(job["static_configs"][0]["targets"].as_array().unwrap().len() > 1);
}
