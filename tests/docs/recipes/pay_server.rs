//! A pay button in the web servers of docs/recipes/pay-server.md, with a payment provider of the test's.

use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::claiming::Postgres;
use super::provider::Provider;
use super::{Scene, on_each_gateway};
use crate::clients::{installed, root, tool};
use crate::pages::file;
use kit::{eventually, free_port, signal};

on_each_gateway!(
    two_clicks_at_once_pay_once,
    each_click_is_told_how_its_payment_stands,
    a_server_that_is_stopped_answers_the_clicks_that_it_has_begun,
);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Framework {
    FastApi,
    Express,
}

const FRAMEWORKS: [Framework; 2] = [Framework::FastApi, Framework::Express];

/// A shop that is open.
struct Shop<'s> {
    framework: Framework,
    scene: &'s Scene,
    provider: Provider,
    postgres: Option<Postgres>,
    server: Child,
    port: u16,
}

/// What a click gets.
#[derive(Debug)]
struct Answer {
    status: u16,
    body: Value,
    retry_after: String,
}

impl<'s> Shop<'s> {
    async fn open(framework: Framework, scene: &'s Scene, more: &[(&str, &str)]) -> Self {
        let provider = Provider::start().await;
        let port = free_port();
        let (files, clients): (&[&str], &[&str]) = match framework {
            Framework::FastApi => (&["shop.py", "payments.py"], &["fencepost.py", "fencepost_async.py"]),
            Framework::Express => (&["shop.mjs", "payments.mjs"], &["fencepost.mjs"]),
        };
        for name in files {
            scene.write(name, &file(name));
        }
        for name in clients {
            std::fs::copy(root().join("examples/clients").join(name), scene.shell.path(name)).unwrap();
        }
        let mut postgres = None;
        let mut server = match framework {
            Framework::FastApi => {
                let uvicorn =
                    ["-m", "uvicorn", "--log-level", "warning", "--port", &port.to_string(), "shop:app"];
                scene.command(tool("python"), &uvicorn)
            }
            Framework::Express => {
                symlink(installed("node_modules"), scene.shell.path("node_modules")).unwrap();
                postgres = Some(Postgres::start().await);
                scene.command("node", &["shop.mjs"])
            }
        };
        // As the page says: the authority is for the gateway alone.
        if let Some((_, authority)) = scene.variables().iter().find(|(name, _)| *name == "SSL_CERT_FILE") {
            server.env_remove("SSL_CERT_FILE").env("LOCKS_CA_FILE", authority);
        }
        if let Some(postgres) = &postgres {
            server.env("DATABASE_URL", &postgres.url);
        }
        server
            .env("PAYMENTS_URL", &provider.url)
            .env("PAYMENTS_KEY", "sk_test")
            .env("PORT", port.to_string());
        server.env("PYTHONDONTWRITEBYTECODE", "1").envs(more.iter().copied());
        server.stdout(Stdio::inherit()).stderr(Stdio::inherit());
        let server = server.spawn().unwrap();
        let shop = Self { framework, scene, provider, postgres, server, port };
        shop.sql(&file("payment.sql")).await;
        eventually("it listens", async || TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
        shop
    }

    async fn sql(&self, statement: &str) {
        let command = match (&self.postgres, self.framework) {
            (Some(postgres), Framework::Express) => {
                let query = "import pg from 'pg';
                    const db = new pg.Client({ connectionString: process.argv[1] });
                    await db.connect();
                    await db.query(process.argv[2]);
                    await db.end();";
                self.scene.command("node", &["--input-type=module", "-e", query, &postgres.url, statement])
            }
            _ => self.scene.command("sqlite3", &["shop.db", statement]),
        };
        Scene::say(command).await.expect(0, "");
    }

    async fn sells(&self, orders: &[&str]) {
        let rows: Vec<_> = orders.iter().map(|order| format!("('{order}', 1999)")).collect();
        self.sql(&format!("INSERT INTO payment (order_id, cents) VALUES {}", rows.join(", "))).await;
    }

    async fn click(&self, order: &str) -> Answer {
        click(self.port, order).await
    }

    /// A click that is not waited for.
    fn begin(&self, order: &'static str) -> tokio::task::JoinHandle<Answer> {
        let port = self.port;
        tokio::spawn(async move { click(port, order).await })
    }

    async fn is_told(&self, order: &str, status: u16, detail: &str) {
        let answer = self.click(order).await;
        let said = answer.body["detail"].as_str().unwrap_or_default();
        assert!(answer.status == status && said.contains(detail), "{:?} {order}: {answer:?}", self.framework);
        assert_eq!(answer.retry_after == "2", matches!(status, 409 | 503), "{answer:?}");
    }

    async fn pays(&self, order: &str) -> String {
        let answer = self.click(order).await;
        answer.receipt(&format!("{:?} {order}", self.framework))
    }
}

impl Answer {
    fn receipt(&self, of: &str) -> String {
        assert_eq!(self.status, 200, "{of}: {self:?}");
        self.body["receipt"].as_str().unwrap_or_else(|| panic!("{of}: {self:?}")).to_owned()
    }
}

async fn click(port: u16, order: &str) -> Answer {
    let url = format!("http://127.0.0.1:{port}/pay/{order}");
    let mut command = Command::new("curl");
    command.args([
        "-sS",
        "--max-time",
        "60",
        "-w",
        "\n%header{retry-after}\n%{http_code}",
        "-X",
        "POST",
        &url,
    ]);
    let said = String::from_utf8(command.output().await.unwrap().stdout).unwrap();
    let mut lines = said.rsplitn(3, '\n');
    let status = lines.next().unwrap().parse().unwrap();
    let retry_after = lines.next().unwrap_or_default().to_owned();
    let body = serde_json::from_str(lines.next().unwrap_or_default()).unwrap_or_default();
    Answer { status, body, retry_after }
}

async fn two_clicks_at_once_pay_once(scene: Scene) {
    for framework in FRAMEWORKS {
        let shop = Shop::open(framework, &scene, &[]).await;
        shop.sells(&["paid", "4711"]).await;
        shop.pays("paid").await;
        shop.provider.is_silent();
        let clicks = [shop.begin("4711"), shop.begin("4711")];
        let look = async || scene.client.get("/lock?key=pay:4711").send().await.json();
        eventually("one waits for the other", async || look().await["waiters"] == 1).await;
        let owner = look().await["owner"].as_str().unwrap_or_default().to_owned();
        assert!(owner.starts_with("shop on "), "{owner}");
        // Meanwhile the server answers others.
        eventually("it is charged", async || shop.provider.requests("4711") == 1).await;
        shop.pays("paid").await;
        shop.provider.answers_again();
        let charged = Instant::now();
        for click in clicks {
            assert_eq!(click.await.unwrap().receipt("4711"), "ch_2");
        }
        assert!(charged.elapsed() < Duration::from_secs(3), "{:?}", charged.elapsed());
        assert_eq!((shop.provider.requests("4711"), shop.provider.charges()), (1, 2));
        scene.becomes_free("pay:4711").await;
    }
}

async fn each_click_is_told_how_its_payment_stands(scene: Scene) {
    let mut shops = Vec::new();
    for framework in FRAMEWORKS {
        let shop = Shop::open(framework, &scene, &[]).await;
        shop.sells(&[
            "lost",
            "declined-late",
            "declined-1",
            "broken-1",
            "refused-1",
            "cut-1",
            "bare-1",
            "cart",
            "old",
        ])
        .await;
        // The operator breaks the lock while the provider charges: the receipt is stored all the same.
        shop.provider.is_silent();
        let lost = shop.begin("lost");
        eventually("it is charged", async || shop.provider.requests("lost") == 1).await;
        scene.client.delete("/lock?key=pay:lost&force=true").send().await.expect(204);
        shop.provider.answers_again();
        assert_eq!(lost.await.unwrap().receipt("lost"), "ch_1");
        // A decline that comes late does not hide what another click has paid meanwhile.
        shop.provider.is_silent();
        let late = shop.begin("declined-late");
        eventually("it is asked for", async || shop.provider.requests("declined-late") == 1).await;
        shop.sql("UPDATE payment SET attempt = 2, receipt = 'ch_other' WHERE order_id = 'declined-late'")
            .await;
        shop.provider.answers_again();
        assert_eq!(late.await.unwrap().receipt("declined-late"), "ch_other");
        shop.is_told("declined-1", 402, "the payment was declined").await;
        shop.is_told("refused-1", 500, "we are looking into it").await;
        shop.is_told("cut-1", 503, "ask again").await;
        shop.is_told("bare-1", 503, "ask again").await;
        for order in ["declined-1", "refused-1", "cut-1", "bare-1"] {
            shop.pays(order).await;
        }
        assert_eq!(shop.provider.charges(), 5);
        shop.is_told("broken-1", 503, "ask again").await;
        shop.is_told("broken-1", 503, "ask again").await;
        shop.is_told("unknown", 404, "no such order").await;
        shop.sql("UPDATE payment SET began = 1000000000, sent = cents WHERE order_id = 'old'").await;
        shop.is_told("old", 500, "we are looking into it").await;
        shop.sql("UPDATE payment SET began = 4000000000, sent = 1 WHERE order_id = 'cart'").await;
        shop.is_told("cart", 500, "we are looking into it").await;
        assert_eq!(shop.provider.charges(), 5);
        shops.push(shop);
    }
    // What is paid needs no gateway.
    scene.gateway.signal("KILL");
    for mut shop in shops {
        assert_eq!(shop.pays("lost").await, "ch_1");
        shop.is_told("broken-1", 503, "ask again").await;
        // Nor does the server end without its database: also those connections break that it does not use.
        futures_util::future::join_all([0; 5].map(|_| shop.pays("lost"))).await;
        if shop.postgres.take().is_some() {
            shop.is_told("lost", 503, "ask again").await;
            shop.is_told("lost", 503, "ask again").await;
        }
    }
}

async fn a_server_that_is_stopped_answers_the_clicks_that_it_has_begun(scene: Scene) {
    for framework in FRAMEWORKS {
        let mut shop = Shop::open(framework, &scene, &[]).await;
        shop.sells(&["4711"]).await;
        shop.provider.is_silent();
        let click = shop.begin("4711");
        eventually("it is charged", async || shop.provider.requests("4711") == 1).await;
        signal(shop.server.id().unwrap(), "TERM");
        let port = shop.port;
        eventually("it takes no more", async || TcpStream::connect(("127.0.0.1", port)).await.is_err()).await;
        shop.provider.answers_again();
        assert_eq!(click.await.unwrap().receipt("4711"), "ch_1");
        let ends = tokio::time::timeout(kit::PATIENCE, shop.server.wait()).await;
        ends.expect("it does not end").unwrap();
        scene.becomes_free("pay:4711").await;
    }
}

/// The gateway refuses the server's API key. The customer has none, and is not told of a wrong one.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_api_key_is_an_error_of_the_server() {
    let scene = Scene::with_keys_and_tls().await;
    let wrong = format!("fp_{}_{}", "a".repeat(12), "b".repeat(32));
    for framework in FRAMEWORKS {
        let shop = Shop::open(framework, &scene, &[("FENCEPOST_API_KEY", &wrong)]).await;
        shop.sells(&["4711"]).await;
        shop.is_told("4711", 500, "we are looking into it").await;
        assert_eq!(shop.provider.charges(), 0);
    }
}
