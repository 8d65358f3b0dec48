//! What is told of files, and when they are read, without a gateway.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

const NO_FILES: Vec<PathBuf> = Vec::new();

/// What was read, and has no effect.
fn only(read: Read) -> Result<impl FnOnce() -> Read, String> {
    read.map(|read| move || Ok(read))
}

#[test]
fn who_may_read_a_file_is_part_of_its_trace() -> io::Result<()> {
    let file = std::env::temp_dir().join(format!("fencepost-trace-{}", std::process::id()));
    fs::write(&file, "same")?;
    let before = trace(&file);
    // The clock of a file system is not a fine one.
    thread::sleep(Duration::from_millis(50));
    fs::set_permissions(&file, Permissions::from_mode(0o600))?;
    let after = trace(&file);
    fs::remove_file(&file)?;
    assert!(before.is_some() && before != after, "{before:?}");
    Ok(())
}

/// A panic is a failure like any other.
#[tokio::test]
async fn what_failed_is_tried_again_and_each_error_told_once() {
    const SECONDS: [&str; 6] = ["nothing", "not for us", "not for us", "panic", "revoked a", "never"];
    let count = Arc::new(AtomicUsize::new(0));
    let (sender, told) = mpsc::channel();
    let counted = count.clone();
    let reload = move || {
        only(match SECONDS[counted.fetch_add(1, Ordering::Relaxed)] {
            "nothing" => Err("nothing".to_owned()),
            "panic" => panic!("on purpose"),
            "revoked a" => Ok("revoked a".to_owned()),
            problem => Err(problem.to_owned()),
        })
    };
    let (_asks, asked) = watch::channel(());
    let tell = |read: &Read| drop(sender.send(read.clone()));
    let watching = watch_files(SettingsFile::Keys, NO_FILES, asked, Err("nothing".to_owned()), reload, tell);
    let is_read = async {
        while count.load(Ordering::Relaxed) < 5 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // In the next look it may read nothing.
        tokio::time::sleep(2 * LOOK_INTERVAL).await;
    };
    tokio::select! {
        _ = tokio::time::timeout(Duration::from_secs(60), is_read) => {}
        () = watching => {}
    }
    assert_eq!(count.load(Ordering::Relaxed), 5, "what is good is not read again");
    let told: Vec<_> = told.try_iter().collect();
    let fault = "the program made a mistake while it read the file".to_owned();
    assert_eq!(told, [Err("not for us".to_owned()), Err(fault), Ok("revoked a".to_owned())]);
}

/// A file at which the second look cannot be made.
struct SecondLookFails(PathBuf, AtomicUsize);

impl AsRef<Path> for SecondLookFails {
    fn as_ref(&self) -> &Path {
        // It is named at each look, and as it is read after the first.
        assert_ne!(self.1.fetch_add(1, Ordering::Relaxed), 2, "on purpose");
        &self.0
    }
}

/// As where the system gives no thread for a moment: a key that is revoked after that would be good for ever.
#[tokio::test]
async fn a_change_is_read_though_an_earlier_look_could_not_be_made() -> io::Result<()> {
    let file = std::env::temp_dir().join(format!("fencepost-looks-{}", std::process::id()));
    fs::write(&file, "before")?;
    let (read_from, watched) = (file.clone(), SecondLookFails(file.clone(), AtomicUsize::new(0)));
    let reload = move || only(fs::read_to_string(&read_from).map_err(|error| error.to_string()));
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    let tell = |read: &Read| drop(sender.send(read.clone()));
    let (_asks, asked) = watch::channel(());
    let said = Ok("before".to_owned());
    let watching = watch_files(SettingsFile::Keys, vec![watched], asked, said, reload, tell);
    let is_seen = async {
        // What cannot be looked at counts as changed.
        assert_eq!(told.recv().await, Some(Ok("before".to_owned())));
        fs::write(&file, "after")?;
        let seen = timeout(Duration::from_secs(60), told.recv()).await;
        assert_eq!(seen.ok().flatten(), Some(Ok("after".to_owned())));
        fs::remove_file(&file)
    };
    tokio::select! {
        seen = is_seen => seen,
        () = watching => panic!("it goes on"),
    }
}

/// As on a network mount whose server is away: else a key that was revoked there works on, and no alarm rings.
#[tokio::test]
async fn files_that_do_not_answer_are_told_while_they_do_not_and_read_once_they_do() {
    const IN_FORCE: &str = "fencepost_settings_file_in_force{file=\"certificate\"}";
    let shows = |number| metrics().text().contains(&format!("{IN_FORCE} {number}\n"));
    let (answers, is_answered) = mpsc::channel::<()>();
    let is_answered = std::sync::Mutex::new(is_answered);
    let reload = move || {
        let is_answered = is_answered.lock().map_err(|error| error.to_string())?;
        // It hangs until the test has seen that.
        only(is_answered.recv().map(|()| "served".to_owned()).map_err(|error| error.to_string()))
    };
    let (sender, told) = mpsc::channel();
    let tell = |read: &Read| drop(sender.send(read.clone()));
    let (_asks, asked) = watch::channel(());
    let said = Ok("served".to_owned());
    let watching = watch_files(SettingsFile::Certificate, NO_FILES, asked, said, reload, tell);
    let is_seen = async {
        let is_told = async || loop {
            match told.try_recv() {
                Ok(read) => break read,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let silent = is_told().await;
        assert!(
            silent.as_ref().is_err_and(|problem| problem.contains("takes longer than 5 s")),
            "{silent:?}"
        );
        assert!(shows(0), "it is no longer in force for certain");
        let _ = answers.send(());
        assert_eq!(is_told().await, Ok("served".to_owned()));
        assert!(shows(1) && told.try_recv().is_err(), "each is told once");
    };
    tokio::select! {
        seen = tokio::time::timeout(Duration::from_secs(60), is_seen) => assert!(seen.is_ok()),
        () = watching => panic!("it goes on"),
    }
}

/// As where a mount that hangs is replaced: a call that waits for the old one returns never, or late.
#[tokio::test]
async fn a_read_that_never_returns_is_left_behind_on_sighup_and_what_it_reads_late_is_dropped() {
    let (returns, late) = mpsc::channel::<()>();
    let late = std::sync::Mutex::new(Some(late));
    let (reads, in_force) = (Arc::new(()), Arc::new(AtomicUsize::new(0)));
    let (of_reads, number) = (reads.clone(), in_force.clone());
    let reload = move || {
        let (of_read, number) = (of_reads.clone(), number.clone());
        let hangs = late.lock().map_err(|error| error.to_string())?.take();
        let read = if hangs.is_some_and(|late| late.recv().is_ok()) { 1 } else { 2 };
        Ok(move || {
            number.store(read, Ordering::Relaxed);
            drop(of_read);
            Ok(read.to_string())
        })
    };
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    let tell = |read: &Read| drop(sender.send(read.clone()));
    let (asks, asked) = watch::channel(());
    let watching = watch_files(SettingsFile::Keys, NO_FILES, asked, Ok("0".to_owned()), reload, tell);
    let is_seen = async {
        let silence = told.recv().await;
        assert!(matches!(&silence, Some(Err(problem)) if problem.contains("longer than 5 s")), "{silence:?}");
        asks.send_replace(());
        assert_eq!(told.recv().await, Some(Ok("2".to_owned())));
        assert_eq!(Arc::strong_count(&reads), 3, "the first one still hangs");
        let _ = returns.send(());
        while Arc::strong_count(&reads) > 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(in_force.load(Ordering::Relaxed), 2, "what is newer stays in force");
    };
    tokio::select! {
        seen = tokio::time::timeout(Duration::from_secs(30), is_seen) => assert!(seen.is_ok()),
        () = watching => panic!("it goes on"),
    }
}

/// As after an hour in which a mount hangs, and is replaced then.
#[tokio::test(start_paused = true)]
async fn on_sighup_a_read_is_left_behind_also_where_as_many_as_may_be_hang_already() {
    let threads = Arc::new(());
    let hanging = vec![threads.clone(); MOST_LEFT_BEHIND];
    let (returns, late) = mpsc::channel::<()>();
    let (asks, mut asked) = watch::channel(());
    let look = aside(move || late.recv(), &threads, || asks.send_replace(()), &mut asked);
    let look = timeout(2 * LOOK_AGAIN_AFTER, look).await;
    assert!(matches!(look, Ok(Err(LeftBehind))));
    drop((returns, hanging));
}
