//! Where people begin at a running gateway: `/`, `/docs` and `/problems`, which need no key.

use tokio::process::Command;

use crate::pages::Said;
use kit::http::{parse, raw};
use kit::{Answer, Client, Gateway, KeysFile, Stage};

const HTML: (&str, &str) = ("Accept", "text/html,application/xhtml+xml,*/*;q=0.8");

async fn gateway() -> Gateway {
    Gateway::start(&["--store", "memory:"]).await
}

async fn guarded_gateway() -> (Gateway, KeysFile) {
    let mut keys = KeysFile::new();
    keys.add_for_all("all", "\"acquire\"");
    keys.write();
    let flag = keys.flag();
    (Gateway::start(&["--store", "memory:", &flag[0], &flag[1]]).await, keys)
}

fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_tells_curl_in_three_lines_what_to_try() {
    let gateway = gateway().await;
    let address = gateway.address;
    let said = text(&Client::new(address).get("/").send().await.expect(200));
    assert_eq!(said.lines().count(), 3, "{said}");
    let command = said.lines().nth(1).unwrap().split_once("lock:  ").unwrap().1;
    assert!(command.contains(&format!("http://{address}/locks/")), "{command}");
    let output = Command::new("sh").args(["-c", command]).output().await.unwrap();
    Said::of(output).expect(0, "\"fencing_token\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_says_where_the_key_goes_if_one_is_needed() {
    let (gateway, _keys) = guarded_gateway().await;
    let said = text(&Client::new(gateway.address).get("/").send().await.expect(200));
    assert!(said.lines().count() == 3 && said.contains("-K key.curl"), "{said}");
    for address in ["/", "/docs", "/problems"] {
        Client::new(gateway.address)
            .get(address)
            .header("Sec-Fetch-Site", "cross-site")
            .send()
            .await
            .expect(200);
    }
    let page = text(&Client::new(gateway.address).get("/docs").send().await.expect(200));
    assert_eq!(page.matches("curl -K key.curl ").count(), 3, "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_leads_a_browser_to_the_introduction() {
    let gateway = gateway().await;
    let client = Client::new(gateway.address);
    let answer = client.get("/").header(HTML.0, HTML.1).send().await.expect(303);
    assert_eq!(answer.header("location"), Some("docs"));
    let page = client.get("/docs").header(HTML.0, HTML.1).send().await.expect(200);
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    let page = text(&page);
    assert!(page.contains("<h1>Fencepost</h1>"));
    let links: Vec<_> = page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(links.len() >= 5, "{links:?}");
    for link in links {
        client.get(&format!("/{link}")).header(HTML.0, HTML.1).send().await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lines_of_the_introduction_run_as_they_stand() {
    let gateway = gateway().await;
    let page = text(&Client::new(gateway.address).get("/docs").send().await.expect(200));
    let lines = page.split("<pre>").nth(1).unwrap().split("</pre>").next().unwrap().replace("&amp;", "&");
    let output = Command::new("bash").args(["-eu", "-c", &lines]).output().await.unwrap();
    let said = Said::of(output).expect(0, "lock-held");
    assert_eq!(said.text.matches("\"owner\":\"me\"").count(), 3, "{said:?}");
}

/// What stands in a page is never what a stranger wrote.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_no_name_becomes_no_part_of_a_page() {
    let (gateway, _keys) = guarded_gateway().await;
    for path in ["/", "/docs"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a'$(b)\r\nConnection: close\r\n\r\n");
        let answer = parse(&raw(gateway.address, request.as_bytes()).await);
        assert!(answer.status == 400 || !text(&answer).contains("$(b)"), "{path}: {}", text(&answer));
    }
    let open = self::gateway().await;
    for path in ["/", "/docs", "/problems"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        parse(&raw(open.address, request.as_bytes()).await).expect_problem(403, "unknown-host");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_problems_has_each_with_a_sentence() {
    let stage = Stage::embedded().await;
    let client = stage.client();
    let list = text(&client.get("/problems").send().await.expect(200));
    let lines: Vec<_> = list.lines().take_while(|line| !line.is_empty()).collect();
    let page = text(&client.get("/problems").header(HTML.0, HTML.1).send().await.expect(200));
    assert!(lines.len() > 25, "{list}");
    for line in lines {
        let words: Vec<_> = line.split_whitespace().collect();
        let explained = text(&client.get(&format!("/problems/{}", words[1])).send().await.expect(200));
        assert!(explained.starts_with(words[0]) && words.len() > 3 && line.ends_with('.'), "{line}");
        assert!(page.contains(&format!("<a href=\"problems/{}\">", words[1])), "{line}");
    }
    assert_eq!(page.matches("<tr>").count(), list.lines().count() - 2);
    for name in ["content-security-policy", "x-frame-options", "x-content-type-options", "referrer-policy"] {
        for address in ["/", "/docs", "/problems"] {
            let answer = client.get(address).header(HTML.0, HTML.1).send().await;
            assert!(answer.header(name).is_some(), "{address}: {name}");
        }
    }
}
