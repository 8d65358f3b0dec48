//! A click that charges once, with a payment provider of the test's.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::Semaphore;

use super::{Scene, on_each_gateway, processes_in};
use crate::pages::{Said, file};
use crate::support::{PATIENCE, eventually, free_port, signal};

on_each_gateway!(
    clicks_at_the_same_time_charge_once_and_get_one_receipt,
    a_click_after_a_payment_that_was_declined_tries_at_once_by_another_key,
    a_click_after_a_crash_charges_by_the_same_key,
    a_click_during_a_slow_payment_is_told_to_ask_again,
    a_click_while_the_provider_is_away_is_told_to_ask_again,
    a_charge_whose_key_may_be_forgotten_is_not_repeated,
    what_the_gateway_refuses_is_an_error_of_the_server,
);

/// Both ways to pay.
#[derive(Clone, Copy, Debug)]
enum Way {
    Python,
    Shell,
}

impl Way {
    const ALL: [Self; 2] = [Self::Python, Self::Shell];

    fn click(self, scene: &Scene, provider: &Provider, order: &str) -> Command {
        let mut command = match self {
            Self::Python => scene.python("pay.py", &[order, "1999"]),
            Self::Shell => scene.script("pay", &[order, "1999"]),
        };
        command.env("PAYMENTS_URL", &provider.url);
        command
    }

    /// How the payment stands, by what is said of it.
    fn says(self, said: &Said) -> &'static str {
        match (self, said.code, said.text.get(..3)) {
            (Self::Python, Some(0), Some("200")) | (Self::Shell, Some(0), _) => "paid",
            (Self::Python, Some(0), Some("402")) | (Self::Shell, Some(3), _) => "declined",
            (Self::Python, Some(0), Some("409")) | (Self::Shell, Some(75), _) => "under way",
            (Self::Python, Some(0), Some("503")) | (Self::Shell, Some(69), _) => "away",
            (Self::Python, Some(0), Some("500")) | (Self::Shell, Some(1), _) => "an error",
            _ => panic!("{self:?}: {said:?}"),
        }
    }
}

/// Takes money: once for each idempotency key. It keeps what it first said to a key, also that a card is declined.
struct Provider {
    url: String,
    till: Arc<Till>,
}

struct Till {
    receipts: Mutex<BTreeMap<String, Option<String>>>,
    requests: Mutex<Vec<String>>,
    /// Answers wait for a permit.
    answers: Semaphore,
}

impl Provider {
    async fn start() -> Self {
        let till = Arc::new(Till {
            receipts: Mutex::default(),
            requests: Mutex::default(),
            answers: Semaphore::new(Semaphore::MAX_PERMITS),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/charges", listener.local_addr().unwrap());
        let router = Router::new().route("/charges", routing::post(charge)).with_state(till.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, till }
    }

    fn requests(&self, order: &str) -> usize {
        self.requests_by(&format!("{order}-1"))
    }

    fn requests_by(&self, key: &str) -> usize {
        self.till.requests.lock().unwrap().iter().filter(|used| *used == key).count()
    }

    fn charges(&self) -> usize {
        self.till.receipts.lock().unwrap().len()
    }

    /// From here on it takes money, and says nothing.
    fn is_silent(&self) {
        self.till.answers.forget_permits(Semaphore::MAX_PERMITS);
    }

    fn answers_again(&self) {
        self.till.answers.add_permits(1000);
    }
}

async fn charge(State(till): State<Arc<Till>>, headers: HeaderMap, body: String) -> Response {
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), json!({"cents": 1999}));
    till.requests.lock().unwrap().push(key.clone());
    let receipt = {
        let mut receipts = till.receipts.lock().unwrap();
        let number = receipts.len() + 1;
        let is_declined = key.starts_with("declined") && key.ends_with("-1");
        receipts.entry(key).or_insert_with(|| (!is_declined).then(|| format!("ch_{number}"))).clone()
    };
    drop(till.answers.acquire().await.unwrap());
    let Some(receipt) = receipt else { return StatusCode::PAYMENT_REQUIRED.into_response() };
    // As providers write it, and as the script reads it.
    format!("{{\"receipt\": \"{receipt}\"}}").into_response()
}

async fn shop(scene: &Scene) -> Provider {
    scene.write("payment.sql", &file("payment.sql"));
    Scene::say(scene.command("sqlite3", &["shop.db", ".read payment.sql"])).await.expect(0, "");
    Provider::start().await
}

async fn clicks_at_the_same_time_charge_once_and_get_one_receipt(scene: Scene) {
    let provider = shop(&scene).await;
    for (number, way) in Way::ALL.into_iter().enumerate() {
        let order = format!("order-{number}");
        let clicks = (0..3).map(|_| Scene::say(way.click(&scene, &provider, &order)));
        let said = futures_util::future::join_all(clicks).await;
        assert!(said.iter().all(|one| one.code == Some(0) && one.text == said[0].text), "{said:?}");
        assert!(said[0].text.ends_with(&format!("ch_{}\n", number + 1)), "{said:?}");
        assert_eq!(provider.requests(&order), 1);
        // However much later: what is paid needs no lock any more, nor a gateway.
        let mut later = way.click(&scene, &provider, &order);
        Scene::alone(&mut later);
        assert_eq!(Scene::say(later).await.text, said[0].text);
        scene.becomes_free(&format!("pay:{order}")).await;
        let mut other = way.click(&scene, &provider, "never-paid");
        Scene::alone(&mut other);
        assert_eq!(way.says(&Scene::say(other).await), "away");
    }
    assert_eq!(provider.charges(), 2);
    Scene::say(Way::Shell.click(&scene, &provider, "1' OR '1'='1")).await.expect(2, "pay ORDER CENTS");
}

async fn a_click_after_a_payment_that_was_declined_tries_at_once_by_another_key(scene: Scene) {
    let provider = shop(&scene).await;
    for way in Way::ALL {
        let order = format!("declined-{way:?}");
        assert_eq!(way.says(&Scene::say(way.click(&scene, &provider, &order)).await), "declined");
        // It is not kept from trying: the lock is free.
        scene.client.get(&format!("/lock?key=pay:{order}")).send().await.expect_problem(404, "not-held");
        assert_eq!(way.says(&Scene::say(way.click(&scene, &provider, &order)).await), "paid");
        assert_eq!([1, 2].map(|attempt| provider.requests_by(&format!("{order}-{attempt}"))), [1, 1]);
    }
}

async fn a_click_while_the_provider_is_away_is_told_to_ask_again(scene: Scene) {
    let provider = shop(&scene).await;
    for way in Way::ALL {
        let order = format!("away-{way:?}");
        let mut click = way.click(&scene, &provider, &order);
        click.env("PAYMENTS_URL", format!("http://127.0.0.1:{}", free_port()));
        assert_eq!(way.says(&Scene::say(click).await), "away");
        // It may have charged: the key stays.
        assert_eq!(way.says(&Scene::say(way.click(&scene, &provider, &order)).await), "paid");
        assert_eq!(provider.requests(&order), 1);
    }
}

/// The charge began two days ago, and how it ended is not known.
async fn a_charge_whose_key_may_be_forgotten_is_not_repeated(scene: Scene) {
    let provider = shop(&scene).await;
    for way in Way::ALL {
        let order = format!("old-{way:?}");
        let began = format!(
            "INSERT INTO payment (order_id, began) VALUES ('{order}', CAST(strftime('%s', 'now') AS INTEGER) - 172800)"
        );
        Scene::say(scene.command("sqlite3", &["shop.db", &began])).await.expect(0, "");
        let said = Scene::say(way.click(&scene, &provider, &order)).await;
        assert_eq!(way.says(&said), "an error");
        assert!(format!("{said:?}").contains(&format!("ask the provider about {order}")), "{said:?}");
        assert_eq!(provider.requests(&order), 0);
    }
}

async fn what_the_gateway_refuses_is_an_error_of_the_server(scene: Scene) {
    let provider = shop(&scene).await;
    let order = "x".repeat(2000);
    let said = Scene::say(Way::Python.click(&scene, &provider, &order)).await;
    assert_eq!(Way::Python.says(&said), "an error");
    assert_eq!(provider.charges(), 0);
}

/// The money is taken, and nothing of it is written down.
async fn a_click_after_a_crash_charges_by_the_same_key(scene: Scene) {
    let provider = shop(&scene).await;
    provider.is_silent();
    let begun = Way::ALL.map(async |way| {
        let order = format!("crash-{way:?}");
        let first = way.click(&scene, &provider, &order).spawn().unwrap();
        eventually("it is charged", async || provider.requests(&order) == 1).await;
        (way, order, first)
    });
    let begun = futures_util::future::join_all(begun).await;
    for pid in processes_in(&fs::canonicalize(scene.shell.path("")).unwrap()) {
        signal(pid, "KILL");
    }
    provider.answers_again();
    for (way, order, first) in begun {
        Scene::end(first).await;
        // Until the lease ends, a click is told to ask again.
        let give_up = Instant::now() + PATIENCE;
        while way.says(&Scene::say(way.click(&scene, &provider, &order)).await) != "paid" {
            assert!(Instant::now() < give_up);
        }
        assert_eq!(provider.requests(&order), 2);
    }
    assert_eq!(provider.charges(), 2);
}

async fn a_click_during_a_slow_payment_is_told_to_ask_again(scene: Scene) {
    let provider = shop(&scene).await;
    provider.is_silent();
    let slow = Way::ALL.map(async |way| {
        let order = format!("slow-{way:?}");
        let first = way.click(&scene, &provider, &order).spawn().unwrap();
        eventually("it is charged", async || provider.requests(&order) == 1).await;
        let second = way.click(&scene, &provider, &order).spawn().unwrap();
        let look = async || scene.client.get(&format!("/lock?key=pay:{order}")).send().await;
        eventually("the second waits", async || look().await.json()["waiters"] == 1).await;
        assert_eq!(way.says(&Scene::end(second).await), "under way");
        (way, first)
    });
    let slow = futures_util::future::join_all(slow).await;
    provider.answers_again();
    for (way, first) in slow {
        assert_eq!(way.says(&Scene::end(first).await), "paid");
    }
    assert_eq!(provider.charges(), 2);
}
