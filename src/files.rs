//! Files of settings that are read anew when they change, and on SIGHUP.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::telemetry::metrics::{SettingsFile, metrics};

/// How often files are looked at. A look costs one system call. Unlike a notification of the kernel, it also sees a
/// file that is changed through another mount, or by swapping a link to its directory, as orchestrators do.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long files may take before it is told that they do not answer, as on a network mount whose server is away.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// How long files that do not answer are waited for, before another thread looks at them: a mount that hangs may have been
/// replaced, and a call that waits for the old one returns perhaps never.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The most threads that are left behind in such calls. With these, the next look is waited for until it returns.
const MOST_LEFT_BEHIND: usize = 64;

/// A look that was left behind. What it reads later is dropped.
struct LeftBehind;

/// What came of reading the files: what is different now, or what is wrong.
pub type Read = Result<String, String>;

/// What distinguishes a file from what stood there before; `None` where there is none. The time is that of its last change
/// of any kind: who may read it changes too, and that is not written into the file.
type Trace = Option<(u64, u64, i64, i64, u64)>;

/// Lets SIGHUP wait while this exists. It would end a process that does not listen for it yet.
///
/// It is for the first thread: those that are started meanwhile let it wait for good.
pub struct HeldHangups {
    before: Option<SigSet>,
}

impl HeldHangups {
    /// From now on.
    pub fn new() -> Self {
        Self { before: SigSet::from(Signal::SIGHUP).thread_swap_mask(SigmaskHow::SIG_BLOCK).ok() }
    }
}

impl Default for HeldHangups {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for HeldHangups {
    fn drop(&mut self) {
        // What the starter of this process lets wait goes on waiting.
        let _ = self.before.map(|before| before.thread_set_mask());
    }
}

/// Tells of each SIGHUP, which ends no gateway, also where there is nothing to read anew. Nor does a file that reaches the limit
/// on its size: to write to it fails.
pub fn hangups() -> io::Result<watch::Sender<()>> {
    drop(signal(SignalKind::from_raw(Signal::SIGXFSZ as i32))?);
    let mut signals = signal(SignalKind::hangup())?;
    let sender = watch::Sender::new(());
    let told = sender.clone();
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            told.send_replace(());
        }
    });
    Ok(sender)
}

/// Whether others can write a file, or put another one in its place, or in that of a link to it: where they can, if anywhere.
pub fn open_to_others(file: &Path) -> Option<PathBuf> {
    const OTHERS_WRITE: u32 = 0o022;
    /// In such a directory each takes away only what is his own.
    const STICKY: u32 = 0o1000;
    let can_write = |path: &Path, unless: u32| {
        path.metadata().is_ok_and(|about| about.mode() & OTHERS_WRITE != 0 && about.mode() & unless == 0)
    };
    let next = |link: &PathBuf| Some(link.parent()?.join(link.read_link().ok()?));
    // A circle of links has no end, and the system follows no more than these.
    let places = std::iter::successors(absolute(file).ok(), next).take(40);
    let mut directories = places.filter_map(|place| Some(place.parent()?.to_owned()));
    let itself = can_write(file, 0).then(|| file.to_owned());
    itself.or_else(|| directories.find(|directory| can_write(directory, STICKY)))
}

/// Calls `read` at first, whenever one of the files has changed, and whenever `asked` asks for it, and then what it returns,
/// which puts into force what was read. After a failure it does so again each second. It ends with the sender of `asked`. It
/// tells the result, unless it was `said` before and nothing was done since. The metrics always say whether the last one
/// succeeded. That files do not answer is such a failure, told while it lasts. Then it is begun anew each minute, and when
/// `asked` asks for it; what the earlier `read` returns after that is dropped.
pub async fn watch_files<C: FnOnce() -> Read + Send + 'static>(
    what: SettingsFile,
    paths: Vec<impl AsRef<Path> + Send + Sync + 'static>,
    mut asked: watch::Receiver<()>,
    mut said: Read,
    read: impl Fn() -> Result<C, String> + Send + Sync + 'static,
    tell: impl Fn(&Read),
) {
    let (paths, read, threads) = (Arc::new(paths), Arc::new(read), Arc::new(()));
    let mut known = None;
    // Since the settings were read at the start, they may have changed.
    let mut is_due = true;
    let tell_metrics = |read: &Read| metrics().settings_in_force.set(what, read.is_ok().into());
    tell_metrics(&said);
    let limit_s = SILENT_AFTER.as_secs();
    let silence = Err(format!("to read it takes longer than {limit_s} s: its disk or mount may hang"));
    let tell_silence = |said: &mut Read| {
        tell_metrics(&silence);
        if *said != silence {
            tell(&silence);
            said.clone_from(&silence);
        }
    };
    let mut ticks = interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_asked = tokio::select! {
            changed = asked.changed() => match changed {
                Ok(()) => true,
                Err(_) => return,
            },
            _ = ticks.tick() => false,
        };
        let looked_at = paths.clone();
        let look = move || looked_at.iter().map(|path| trace(path.as_ref())).collect::<Vec<_>>();
        let found = aside(look, &threads, || tell_silence(&mut said), &mut asked).await;
        let Ok(found) = found else { continue };
        // What was told as silent is read anew, also if nothing has changed.
        is_due |= said.is_err();
        let is_changed = known.is_some() && found != known;
        if !(is_asked || is_changed || is_due) {
            continue;
        }
        // What changes while it is read is found by the next look.
        known = found;
        let (read, read_from) = (read.clone(), paths.clone());
        let read = move || no_pipe(&read_from).and_then(|()| read());
        let read = aside(read, &threads, || tell_silence(&mut said), &mut asked).await;
        let Ok(read) = read else { continue };
        let read = read
            .unwrap_or_else(|| Err("the program made a mistake while it read the file".to_owned()))
            .and_then(|put_into_force| put_into_force());
        // Where the look failed, for want of a thread perhaps, nothing is known with which the next could be compared.
        is_due = read.is_err() || known.is_none();
        tell_metrics(&read);
        if is_asked || is_changed || read != said {
            tell(&read);
            said = read;
        }
    }
}

/// Runs on a thread of its own, one of `threads`: a mount that hangs would stop the threads of the runtime one by one. The end
/// of the process does not wait for this thread. Where none can be started, it waits for one that is there for what blocks.
/// `None` if it panics. If it takes long, that is told, and it goes on until it is left behind.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    threads: &Arc<()>,
    tell_silence: impl FnOnce(),
    asked: &mut watch::Receiver<()>,
) -> Result<Option<T>, LeftBehind> {
    let (done, mut is_done) = oneshot::channel();
    let counted = threads.clone();
    let work = Arc::new(Mutex::new(Some(move || {
        // If the process ends meanwhile, no receiver is left.
        drop(done.send(work()));
        drop(counted);
    })));
    let begin = move || work.lock().take().map_or((), |work| work());
    if thread::Builder::new().name("files".into()).spawn(begin.clone()).is_err() {
        tokio::task::spawn_blocking(begin);
    }
    if let Ok(done) = timeout(SILENT_AFTER, &mut is_done).await {
        return Ok(done.ok());
    }
    tell_silence();
    // One count is the caller's.
    if Arc::strong_count(threads) - 1 > MOST_LEFT_BEHIND {
        return Ok(is_done.await.ok());
    }
    tokio::select! {
        done = &mut is_done => Ok(done.ok()),
        _ = asked.changed() => Err(LeftBehind),
        () = sleep(LOOK_AGAIN_AFTER - SILENT_AFTER) => Err(LeftBehind),
    }
}

/// To open a pipe is to wait for the one who writes to it, perhaps for ever.
fn no_pipe(paths: &[impl AsRef<Path>]) -> Result<(), String> {
    let is_pipe = |path: &&Path| path.metadata().is_ok_and(|about| about.file_type().is_fifo());
    let pipe = paths.iter().map(AsRef::as_ref).find(is_pipe);
    pipe.map_or(Ok(()), |pipe| Err(format!("{} is a pipe: write a file", pipe.display())))
}

fn trace(path: &Path) -> Trace {
    let file = path.metadata().ok()?;
    Some((file.dev(), file.ino(), file.ctime(), file.ctime_nsec(), file.size()))
}

#[cfg(test)]
mod tests {
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
        let watching =
            watch_files(SettingsFile::Keys, NO_FILES, asked, Err("nothing".to_owned()), reload, tell);
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
            assert!(
                matches!(&silence, Some(Err(problem)) if problem.contains("longer than 5 s")),
                "{silence:?}"
            );
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
}
