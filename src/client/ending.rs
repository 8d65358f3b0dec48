//! How a command that asks gateways ends: with a status that scripts know, and with one line where something went wrong.

use std::future::Future;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use crate::log::unseen::{Form, escaped};

/// Another client holds the lock (`EX_TEMPFAIL`).
pub(crate) const BUSY: u8 = 75;
/// The gateway could not be reached, or cannot do its work (`EX_UNAVAILABLE`).
pub(crate) const UNREACHABLE: u8 = 69;
/// Something that this machine should be able to do has failed (`EX_OSERR`).
pub(crate) const NOT_POSSIBLE: u8 = 71;
/// The lease was lost.
pub(crate) const LOST: u8 = 76;
/// The work may have been done, and is not to be done twice (`EX_NOPERM`).
pub(crate) const ABANDONED: u8 = 77;
/// The request is wrong, as wrong settings are.
pub(crate) const REFUSED: u8 = 2;
/// How long the reader of a line may take to make room for it.
const LINE_MAY_TAKE: Duration = Duration::from_secs(2);
/// How many files a command may open at the same moment: its own, and those of the libraries.
const FILES_AT_ONCE: usize = 16;
/// The threads for what blocks: while one prints and waits for its reader, the other resolves names.
const BLOCKING_THREADS: usize = 2;
/// How long they may take to begin.
const BEGINNING_MAY_TAKE: Duration = Duration::from_secs(10);
/// What shells add to the number of the signal that ended a command.
const BY_SIGNAL: u8 = 128;

/// Why a command ends before its work is done.
pub(crate) struct CommandFailure {
    pub(crate) problem: String,
    pub(crate) status: u8,
}

impl CommandFailure {
    pub(crate) fn new(status: u8, problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), status }
    }

    /// Says something more, in the same line.
    pub(crate) fn and(mut self, more: &str) -> Self {
        if !self.problem.is_empty() && !more.is_empty() {
            self.problem += "; ";
        }
        self.problem += more;
        self
    }

    /// Something of this machine is missing.
    pub(crate) fn not_possible(problem: impl Into<String>) -> Self {
        Self::new(NOT_POSSIBLE, problem)
    }
}

/// The status of a command that this signal has ended.
pub(crate) fn by_signal(number: i32) -> u8 {
    u8::try_from(number).map_or(u8::MAX, |number| BY_SIGNAL.saturating_add(number))
}

/// Builds what the program runs on, with all that the system could refuse it later. Where a file is missing as it is built, or the
/// first thread for what blocks as it is needed, the library panics, and a lock that was taken might not be released.
pub fn build_runtime(builder: &mut Builder) -> io::Result<Runtime> {
    expect_descriptors()?;
    // Those threads stay: if there is one, what blocks waits for it where no more can be started.
    let runtime = builder.enable_all().thread_keep_alive(Duration::MAX).build()?;
    let has_threads = begin_threads(&runtime);
    has_threads.then_some(runtime).ok_or_else(|| {
        io::Error::other("too few threads can be started, see ulimit -u and the pids limit of the container")
    })
}

/// Finds out whether so many files can be opened as a command needs.
pub(crate) fn expect_descriptors() -> io::Result<()> {
    let opened: io::Result<Vec<_>> = (0..FILES_AT_ONCE / 2).map(|_| io::pipe()).collect();
    let told = |error| io::Error::other(format!("too few files can be opened, see ulimit -n: {error}"));
    opened.map(drop).map_err(told)
}

/// Starts the threads for what blocks, and says whether all of them are there.
fn begin_threads(runtime: &Runtime) -> bool {
    let (gate, (begun, has_begun)) = (Arc::new(Mutex::new(())), mpsc::channel());
    // Until it opens, no thread is free for the work of another.
    let shut = gate.lock();
    let start = || {
        for _ in 0..BLOCKING_THREADS {
            let (gate, begun) = (gate.clone(), begun.clone());
            runtime.spawn_blocking(move || {
                let _ = begun.send(());
                drop(gate.lock());
            });
        }
    };
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let started = panic::catch_unwind(AssertUnwindSafe(start));
    panic::set_hook(hook);
    let all_begin = || (0..BLOCKING_THREADS).all(|_| has_begun.recv_timeout(BEGINNING_MAY_TAKE).is_ok());
    let have_all_begun = started.is_ok() && all_begin();
    drop(shut);
    have_all_begun
}

/// Does the work of a command on this thread, and ends as it did.
pub(crate) fn carry_out(work: impl Future<Output = Result<u8, CommandFailure>>) -> ExitCode {
    let runtime = match build_runtime(&mut Builder::new_current_thread()) {
        Ok(runtime) => runtime,
        Err(error) => return exit_code(Err(CommandFailure::not_possible(format!("cannot start: {error}")))),
    };
    let done = runtime.block_on(work);
    // A name that is still being resolved must not delay the end.
    runtime.shutdown_background();
    exit_code(done)
}

/// Says what went wrong, if there is something to say, and returns the status.
pub(crate) fn exit_code(ended: Result<u8, CommandFailure>) -> ExitCode {
    ExitCode::from(ended.unwrap_or_else(|CommandFailure { problem, status }| {
        if !problem.is_empty() {
            say(&problem);
        }
        status
    }))
}

/// Says one line to people. What gateways, certificates and names of files bring along stays one line, and moves no cursor.
///
/// If standard error is closed, or full and not read, the exit status is all that is said.
pub fn say(problem: &str) {
    let line: Arc<str> = escaped(&format!("fencepost: {problem}"), Form::Text).into();
    let (written, (done, is_done)) = (line.clone(), mpsc::channel());
    let write = move || drop(done.send(io::stderr().write_all(written.as_bytes())));
    match thread::Builder::new().spawn(write) {
        Ok(_) => drop(is_done.recv_timeout(LINE_MAY_TAKE)),
        // Why there is no thread may be just what is to be said.
        Err(_) => drop(io::stderr().write_all(line.as_bytes())),
    }
}
