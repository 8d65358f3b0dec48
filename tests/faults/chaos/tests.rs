//! The report says what the history says.

use kit::history::{Action, Answer, Fault, History, Operation, Share, Span, Terms};
use kit::resource::Discipline;

use super::report::{Gap, Losses, Report};

const S: u64 = 1_000_000;

fn look(end_us: u64, answer: Answer) -> Operation {
    Operation {
        id: end_us.to_string(),
        key: "a".to_owned(),
        token: None,
        action: Action::Look,
        span: Span { start_us: end_us - 1, end_us },
        answer,
        waits: false,
        true_at_us: None,
        ended_us: None,
        terms: Terms::default(),
        share: Share::default(),
    }
}

fn fault(start_us: u64, name: &str) -> Fault {
    Fault { name: name.to_owned(), start_us }
}

#[test]
fn the_longest_time_without_service_ends_with_an_answer_that_says_what_became_of_a_request() {
    let operations = vec![
        look(10 * S, Answer::NotHeld),
        look(12 * S, Answer::Unknown),
        look(13 * S, Answer::NotDone),
        look(14 * S, Answer::Lost { was_written: false }),
        look(17 * S, Answer::NotHeld),
        look(20 * S, Answer::NotHeld),
        // Nobody asked before it.
        look(30 * S, Answer::NotHeld),
    ];
    let faults = vec![
        fault(7 * S, "early"),
        fault(9 * S, "before"),
        fault(16 * S, "meanwhile"),
        fault(18 * S, "late"),
    ];
    let mut report = Report::new("redis", 5 * S);
    report.add(History { operations, faults, quiet_us: Some(29 * S), ..History::default() }, Vec::new());
    let faults = vec!["before".to_owned(), "meanwhile".to_owned()];
    assert_eq!(report.longest_gap(), Some(Gap { ms: 7_000, start_us: 10 * S, faults }));
    assert!(
        report.to_text().contains("7000 ms  5 s after the begin: before, meanwhile"),
        "{}",
        report.to_text()
    );
}

#[test]
fn what_was_lost_is_told_of_each_discipline_and_broken_promises_are_named() {
    let mut report = Report::new("redis", 0);
    report.add(History::default(), vec!["I3: two hold <it>".to_owned()]);
    report.losses =
        vec![Losses { at_us: S, of: [(4, 0); 3] }, Losses { at_us: 2 * S, of: [(9, 0), (9, 1), (9, 3)] }];
    assert_eq!((report.lost_by(Discipline::Claim), report.lost_by(Discipline::Unfenced)), (0, 3));
    let text = report.to_text();
    for line in ["0 of 9  by a resource that claims", "3 of 9  by one without a fence", "I3: two hold <it>"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let page = report.to_html();
    assert!(page.contains("I3: two hold &lt;it>") && page.contains("Updates lost so far"), "{page}");
}
