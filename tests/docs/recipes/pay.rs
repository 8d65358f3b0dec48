//! A click that charges once, with a payment provider of the test's.

use std::fs;
use std::process::Stdio;
use std::time::Instant;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use super::provider::Provider;
use super::{Scene, on_each_gateway, processes_in};
use crate::pages::{Said, file, snippet};
use kit::{PATIENCE, eventually, server_port, signal};

on_each_gateway!(
    clicks_at_the_same_time_charge_once_and_get_one_receipt,
    a_click_after_a_payment_that_was_declined_tries_at_once_by_another_key,
    a_click_after_a_crash_charges_by_the_same_key,
    a_click_during_a_slow_payment_is_told_to_ask_again,
    a_click_while_the_provider_is_away_is_told_to_ask_again,
    a_charge_whose_key_may_be_forgotten_is_not_repeated,
    what_the_gateway_refuses_is_an_error_of_the_server,
    half_an_answer_of_the_provider_is_asked_for_again_by_the_same_key,
    an_error_that_the_provider_keeps_ends_when_an_operator_opens_a_new_attempt,
    what_the_provider_refuses_is_an_error_of_the_server,
    an_amount_that_changes_after_an_attempt_began_is_not_charged,
    a_receipt_that_the_database_cannot_take_is_there_by_the_next_click,
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
            Self::Python => scene.python("pay.py", &[order]),
            Self::Shell => scene.script("pay", &[order]),
        };
        command.env("PAYMENTS_URL", &provider.url).env("PAYMENTS_KEY", "sk_test");
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

async fn shop(scene: &Scene) -> Provider {
    scene.write("payment.sql", &file("payment.sql"));
    scene.write("payments.py", &file("payments.py"));
    sql(scene, ".read payment.sql").await;
    Provider::start().await
}

async fn sql(scene: &Scene, statement: &str) -> String {
    let sqlite = ["-cmd", ".timeout 5000", "shop.db", statement];
    Scene::say(scene.command("sqlite3", &sqlite)).await.expect(0, "").text
}

/// Somebody orders.
async fn order(scene: &Scene, order: &str) -> String {
    sql(scene, &format!("INSERT INTO payment (order_id, cents) VALUES ('{order}', 1999)")).await;
    order.to_owned()
}

async fn clicks_at_the_same_time_charge_once_and_get_one_receipt(scene: Scene) {
    let provider = shop(&scene).await;
    order(&scene, "never-paid").await;
    for (number, way) in [Way::Shell, Way::Python].into_iter().enumerate() {
        let order = order(&scene, ["compact-1", "spaced-1"][number]).await;
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
    Scene::say(Way::Shell.click(&scene, &provider, "1' OR '1'='1")).await.expect(2, "pay ORDER");
    Scene::say(Way::Shell.click(&scene, &provider, "unknown")).await.expect(2, "no order unknown");
    Scene::say(Way::Python.click(&scene, &provider, "unknown")).await.expect(0, "404 there is no such order");
}

async fn a_click_after_a_payment_that_was_declined_tries_at_once_by_another_key(scene: Scene) {
    let provider = shop(&scene).await;
    for way in Way::ALL {
        let order = order(&scene, &format!("declined-{way:?}")).await;
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
        let order = order(&scene, &format!("away-{way:?}")).await;
        let mut click = way.click(&scene, &provider, &order);
        click.env("PAYMENTS_URL", format!("http://127.0.0.1:{}", server_port()));
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
        let order = order(&scene, &format!("old-{way:?}")).await;
        sql(&scene, &format!("UPDATE payment SET began = strftime('%s', 'now') - 172800, sent = cents WHERE order_id = '{order}'")).await;
        let said = Scene::say(way.click(&scene, &provider, &order)).await;
        assert_eq!(way.says(&said), "an error");
        assert!(format!("{said:?}").contains(&format!("ask the provider about {order}")), "{said:?}");
        assert_eq!(provider.requests(&order), 0);
    }
}

async fn what_the_gateway_refuses_is_an_error_of_the_server(scene: Scene) {
    let provider = shop(&scene).await;
    let order = order(&scene, &"x".repeat(2000)).await;
    let said = Scene::say(Way::Python.click(&scene, &provider, &order)).await;
    assert_eq!(Way::Python.says(&said), "an error");
    assert_eq!(provider.charges(), 0);
}

/// The money is taken, and nothing of it is written down.
async fn a_click_after_a_crash_charges_by_the_same_key(scene: Scene) {
    let provider = shop(&scene).await;
    provider.is_silent();
    let begun = Way::ALL.map(async |way| {
        let order = order(&scene, &format!("crash-{way:?}")).await;
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
        let order = order(&scene, &format!("slow-{way:?}")).await;
        let first = way.click(&scene, &provider, &order).spawn().unwrap();
        eventually("it is charged", async || provider.requests(&order) == 1).await;
        let second = way.click(&scene, &provider, &order).spawn().unwrap();
        let look = async || scene.client.get(&format!("/lock?key=pay:{order}")).send().await;
        eventually("the second waits", async || look().await.json()["waiters"] == 1).await;
        assert_eq!(way.says(&Scene::end(second).await), "under way");
        if let Way::Python = way {
            assert!(look().await.json()["owner"].as_str().unwrap().starts_with("pay.py on "));
        }
        (way, first)
    });
    let slow = futures_util::future::join_all(slow).await;
    provider.answers_again();
    for (way, first) in slow {
        assert_eq!(way.says(&Scene::end(first).await), "paid");
    }
    assert_eq!(provider.charges(), 2);
}

async fn half_an_answer_of_the_provider_is_asked_for_again_by_the_same_key(scene: Scene) {
    let provider = shop(&scene).await;
    for way in Way::ALL {
        for half in ["cut", "bare"] {
            let order = order(&scene, &format!("{half}-{way:?}")).await;
            assert_eq!(way.says(&Scene::say(way.click(&scene, &provider, &order)).await), "away");
            assert_eq!(way.says(&Scene::say(way.click(&scene, &provider, &order)).await), "paid");
            assert_eq!(provider.requests(&order), 2);
        }
    }
    assert_eq!(provider.charges(), 4);
}

async fn an_error_that_the_provider_keeps_ends_when_an_operator_opens_a_new_attempt(scene: Scene) {
    let provider = shop(&scene).await;
    for way in Way::ALL {
        let order = order(&scene, &format!("broken-{way:?}")).await;
        for _ in 0..2 {
            assert_eq!(way.says(&Scene::say(way.click(&scene, &provider, &order)).await), "away");
        }
        operator_says(&scene, "attempt = attempt + 1", &order).await;
        assert_eq!(way.says(&Scene::say(way.click(&scene, &provider, &order)).await), "paid");
        assert_eq!([1, 2].map(|attempt| provider.requests_by(&format!("{order}-{attempt}"))), [2, 1]);
        // What is said of another attempt, or of an order that is paid, changes nothing.
        operator_says(&scene, "attempt = attempt + 1", &order).await;
        let paid = format!("SELECT attempt, began > 0, receipt FROM payment WHERE order_id = '{order}'");
        assert!(sql(&scene, &paid).await.starts_with("2|1|ch_"));
        sql(&scene, &format!("UPDATE payment SET attempt = 1 WHERE order_id = '{order}'")).await;
        operator_says(&scene, "attempt = attempt + 1", &order).await;
        assert!(sql(&scene, &paid).await.starts_with("1|1|ch_"));
    }
    let order = order(&scene, "known").await;
    sql(&scene, "UPDATE payment SET attempt = 2 WHERE order_id = 'known'").await;
    operator_says(&scene, "attempt = attempt + 1", &order).await;
    assert_eq!(sql(&scene, "SELECT attempt FROM payment WHERE order_id = 'known'").await, "2\n");
    operator_says(&scene, "receipt = 'ch_1'", &order).await;
    Scene::say(Way::Python.click(&scene, &provider, &order)).await.expect(0, "200 ch_1");
    assert_eq!(provider.charges(), 2);
}

/// What the page has an operator do, for this order.
async fn operator_says(scene: &Scene, what: &str, order: &str) {
    let line = snippet("console", what).trim().strip_prefix("$ ").unwrap().replace("4711", order);
    Scene::say(scene.command("bash", &["-c", &line])).await.expect(0, "");
}

async fn what_the_provider_refuses_is_an_error_of_the_server(scene: Scene) {
    let provider = shop(&scene).await;
    for way in Way::ALL {
        let order = order(&scene, &format!("refused-{way:?}")).await;
        let said = Scene::say(way.click(&scene, &provider, &order)).await;
        assert!(way.says(&said) == "an error" && said.text.contains("answers 401"), "{said:?}");
        // The setting is corrected.
        assert_eq!(way.says(&Scene::say(way.click(&scene, &provider, &order)).await), "paid");
        assert_eq!(provider.requests(&order), 2);
    }
}

async fn an_amount_that_changes_after_an_attempt_began_is_not_charged(scene: Scene) {
    let provider = shop(&scene).await;
    for way in Way::ALL {
        let order = order(&scene, &format!("cart-{way:?}")).await;
        let mut click = way.click(&scene, &provider, &order);
        click.env("PAYMENTS_URL", format!("http://127.0.0.1:{}", server_port()));
        assert_eq!(way.says(&Scene::say(click).await), "away");
        let costs = async |cents: u32| {
            sql(&scene, &format!("UPDATE payment SET cents = {cents} WHERE order_id = '{order}'")).await;
        };
        costs(2500).await;
        let said = Scene::say(way.click(&scene, &provider, &order)).await;
        assert!(way.says(&said) == "an error", "{said:?}");
        assert!(said.text.contains(&format!("ask the provider about {order}-1")), "{said:?}");
        assert_eq!(provider.requests(&order), 0);
        costs(1999).await;
        assert_eq!(way.says(&Scene::say(way.click(&scene, &provider, &order)).await), "paid");
    }
}

/// Somebody else locks the database after the money was taken, for longer than a click waits for it.
async fn a_receipt_that_the_database_cannot_take_is_there_by_the_next_click(scene: Scene) {
    let provider = shop(&scene).await;
    provider.is_silent();
    let mut clicks = Vec::new();
    for way in Way::ALL {
        let order = order(&scene, &format!("locked-{way:?}")).await;
        let click = way.click(&scene, &provider, &order).spawn().unwrap();
        eventually("it is charged", async || provider.requests(&order) == 1).await;
        clicks.push((way, order, click));
    }
    let mut other = scene.command("sqlite3", &["shop.db"]).stdin(Stdio::piped()).spawn().unwrap();
    other.stdin.as_mut().unwrap().write_all(b"BEGIN EXCLUSIVE;\nSELECT 'locked';\n").await.unwrap();
    let line = BufReader::new(other.stdout.take().unwrap()).lines().next_line().await;
    assert_eq!(line.unwrap().as_deref(), Some("locked"));
    provider.answers_again();
    let mut unpaid = Vec::new();
    for (way, order, click) in clicks {
        assert_eq!(way.says(&Scene::end(click).await), "away");
        unpaid.push((way, order));
    }
    other.kill().await.unwrap();
    for (way, order) in unpaid {
        assert_eq!(way.says(&Scene::say(way.click(&scene, &provider, &order)).await), "paid");
    }
    assert_eq!(provider.charges(), 2);
}
