//! Files of settings that are read anew when they change, and on SIGHUP.

use std::collections::BTreeSet;
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

/// The most threads that are left behind in such calls by time. With these, another look is made once the last one returns, or
/// when somebody asks for it.
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

/// What warns of each of the files that others can write, once each time that they can. It looks at them, and a mount may hang:
/// it is for the thread on which they are read.
pub fn tells_open(files: Vec<PathBuf>, so_they: &'static str) -> impl Fn() {
    let told = Mutex::new(BTreeSet::new());
    move || {
        let open: BTreeSet<_> = files.iter().filter_map(|file| open_to_others(file)).collect();
        let mut told = told.lock();
        for file in open.difference(&told) {
            let file = file.display();
            tracing::warn!(%file, "others can write this file, or in this directory, and so {so_they}: chmod go-w");
        }
        *told = open;
    }
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
/// succeeded. That files do not answer is such a failure, told while it lasts. Then it is begun anew each minute for an hour, and
/// when `asked` asks for it; what the earlier `read` returns after that is dropped.
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
    let has_room = Arc::strong_count(threads) - 1 <= MOST_LEFT_BEHIND;
    tokio::select! {
        done = &mut is_done => Ok(done.ok()),
        _ = asked.changed() => Err(LeftBehind),
        () = sleep(LOOK_AGAIN_AFTER - SILENT_AFTER), if has_room => Err(LeftBehind),
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
mod tests;
