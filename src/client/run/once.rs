//! `fencepost once`: what it has besides `run`. The output of the command is passed on, and kept as a result.

use std::io::{self, PipeWriter, Write};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as Blocked};
use parking_lot::Mutex;
use rustix::io::{ioctl_fionread, read};
use rustix::process::Signal;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_blocking};

use super::ending::last_answer;
use super::renewals::go_on_renewing;
use super::signals::Signals;
use crate::client::{
    AcquireAnswer, AcquireSettings, CommandFailure, Gateway, Gateways, StoreAnswer, StoredOutput, Trouble,
    WorkOutput, by_signal, say,
};

/// The command has run, and its result could not be stored (`EX_IOERR`).
const NOT_STORED: u8 = 74;
/// How long storing is tried at least, and one try.
const STORING_MAY_TAKE: Duration = Duration::from_mins(1);
const STORING_TRY_MAY_TAKE: Duration = Duration::from_secs(10);
/// Why there is no use in beginning once more.
const BEGUN_ELSEWHERE: &str =
    "the work was begun here, and now it is not: several stores may be behind this address";
/// How much of an output is passed on at once: what a pipe holds.
const CHUNK_BYTES: usize = 64 * 1024;

/// The output of a command on its way to standard output, and a copy of it.
pub(super) struct CommandOutput {
    /// What passes it on has it. Where that is over, a command that writes on is told so, and does not wait for ever.
    pipe: Weak<Receiver>,
    copy: Arc<Mutex<OutputCopy>>,
    is_over: Arc<Notify>,
    printing: JoinHandle<io::Result<()>>,
    /// What was not passed on when the command had ended.
    rest: Vec<u8>,
}

struct OutputCopy {
    bytes: Vec<u8>,
    output_bytes: u64,
    max_bytes: usize,
}

impl CommandOutput {
    /// Passes on what is written into the other end, and keeps a copy that is no longer than this.
    pub(super) fn open(max_bytes: usize) -> io::Result<(Self, PipeWriter)> {
        let (reader, writer) = io::pipe()?;
        let pipe = Arc::new(Receiver::from_owned_fd(reader.into())?);
        let copy = Arc::new(Mutex::new(OutputCopy { bytes: Vec::new(), output_bytes: 0, max_bytes }));
        let is_over = Arc::new(Notify::new());
        let (passed_on, pipe) = (pipe.clone(), Arc::downgrade(&pipe));
        let printing = tokio::spawn(pass_on(passed_on, copy.clone(), is_over.clone()));
        Ok((Self { pipe, copy, is_over, printing, rest: Vec::new() }, writer))
    }

    /// Takes over what is in the pipe when the command has ended. So storing does not wait for the reader of standard output.
    pub(super) fn close(&mut self) {
        let Some(pipe) = self.pipe.upgrade() else { return };
        let left = ioctl_fionread(&*pipe).ok().and_then(|bytes| usize::try_from(bytes).ok());
        self.rest = vec![0; left.unwrap_or_default()];
        let read = read(&*pipe, &mut self.rest).unwrap_or_default();
        self.rest.truncate(read);
        self.copy.lock().add(&self.rest);
        self.is_over.notify_one();
    }

    /// All of it, if it was short enough.
    pub(super) fn whole(&self) -> WorkOutput {
        let copy = self.copy.lock();
        match copy.output_bytes <= copy.max_bytes as u64 {
            true => WorkOutput::Whole(copy.bytes.clone()),
            false => WorkOutput::Omitted { output_bytes: copy.output_bytes },
        }
    }

    /// Prints what is left to print, unless a signal comes. The work is done, though its output may have no reader.
    pub(super) async fn finish(self, signals: &mut Signals) -> Result<(), CommandFailure> {
        let printing = async {
            self.printing.await.unwrap_or_else(|error| Err(io::Error::other(error)))?;
            print(self.rest).await
        };
        tokio::select! {
            biased;
            _ = signals.next_or_stop() => Ok(()),
            printed = printing => match printed {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unprinted(error)),
                _ => Ok(()),
            },
        }
    }
}

impl OutputCopy {
    fn add(&mut self, chunk: &[u8]) {
        self.output_bytes += chunk.len() as u64;
        match self.output_bytes <= self.max_bytes as u64 {
            true => self.bytes.extend_from_slice(chunk),
            false => self.bytes = Vec::new(),
        }
    }
}

/// Passes on chunk by chunk. The command waits meanwhile, as it would if it wrote to the reader itself.
/// If it cannot be printed, the work goes on all the same, and the first reason is returned.
async fn pass_on(pipe: Arc<Receiver>, copy: Arc<Mutex<OutputCopy>>, is_over: Arc<Notify>) -> io::Result<()> {
    let mut all_printed = Ok(());
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let is_ready = tokio::select! {
            biased;
            () = is_over.notified() => return all_printed,
            is_ready = pipe.readable() => is_ready,
        };
        match is_ready.and_then(|()| pipe.try_read(&mut chunk)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return all_printed,
            Ok(read) => {
                copy.lock().add(&chunk[..read]);
                let printed = print(chunk[..read].to_vec()).await;
                all_printed = all_printed.and(printed);
            }
        }
    }
}

/// Prints on a thread of its own: a reader that is slow must not keep signals or renewals waiting.
async fn print(bytes: Vec<u8>) -> io::Result<()> {
    let printed = spawn_blocking(move || {
        // A terminal may stop what writes to it while the command has it.
        SigSet::from(Blocked::SIGTTOU).thread_block()?;
        let mut stdout = io::stdout().lock();
        stdout.write_all(&bytes).and_then(|()| stdout.flush())
    });
    printed.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Prints the result of work that was done before.
pub(super) async fn replay(
    lock: &AcquireSettings,
    result: StoredOutput,
    signals: &mut Signals,
) -> Result<u8, CommandFailure> {
    match result.output {
        WorkOutput::Whole(bytes) => tokio::select! {
            biased;
            signal = signals.next() => return Err(CommandFailure::new(by_signal(signal.as_raw()), "")),
            done = print(bytes) => done.map_err(unprinted)?,
        },
        WorkOutput::Omitted { output_bytes } => {
            let name = lock.name();
            say(&format!("{name} is done, but its output of {output_bytes} bytes was too long to be stored"));
        }
    }
    Ok(result.status)
}

/// The reader of standard output may have gone, as `head` does: that is no failure to speak of.
fn unprinted(error: io::Error) -> CommandFailure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => CommandFailure::new(by_signal(Signal::PIPE.as_raw()), ""),
        _ => CommandFailure::not_possible(format!("cannot print: {error}")),
    }
}

/// Stores the output of a command that has succeeded, and returns the exit status.
pub(super) async fn store(
    lock: &AcquireSettings,
    gateways: &mut Gateways,
    signals: &mut Signals,
    output: &WorkOutput,
) -> Result<u8, CommandFailure> {
    let may_take = lock.ttl.max(STORING_MAY_TAKE);
    let mut again = lock.clone();
    if let Some(terms) = &mut again.once {
        // The work is done: no other has to find out.
        terms.may_take_over = true;
    }
    let store = async |gateway: &Gateway, patience| store_at(gateway, &again, output, patience).await;
    let renewing = go_on_renewing(gateways.clone(), lock.ttl);
    let answer = tokio::select! {
        biased;
        answer = last_answer(gateways, signals, may_take, STORING_TRY_MAY_TAKE, store) => answer,
        never = renewing => match never {},
    };
    let why_not = match answer {
        Some(Ok(())) => return Ok(0),
        Some(Err(reason)) => reason,
        None => gateways.trouble().unwrap_or_else(|| "no answer in time".to_owned()),
    };
    let problem = format!(
        "the command has succeeded, but its result could not be stored, so {} may be done again: {why_not}",
        lock.name()
    );
    Err(CommandFailure::new(NOT_STORED, problem))
}

/// Stores it at one gateway. The inner error says why it cannot be stored any more.
async fn store_at(
    gateway: &Gateway,
    lock: &AcquireSettings,
    output: &WorkOutput,
    patience: Duration,
) -> Result<Result<(), String>, Trouble> {
    let short = output.omitted();
    let (mut stored, mut was_begun) = (output, false);
    loop {
        match gateway.store(stored, patience).await? {
            StoreAnswer::Stored => return Ok(Ok(())),
            StoreAnswer::TooLong(_) if matches!(stored, WorkOutput::Whole(_)) => stored = &short,
            StoreAnswer::TooLong(reason) | StoreAnswer::Superseded(reason) => return Ok(Err(reason)),
            // As where gateways of two stores are behind one address: to repeat that needs a pause.
            StoreAnswer::NotBegun if was_begun => return Err(Trouble::without_answer(BEGUN_ELSEWHERE)),
            // The same token begins once more, and stores what is done already.
            StoreAnswer::NotBegun => match gateway.acquire(lock, Duration::ZERO, patience).await {
                AcquireAnswer::Held(_) => was_begun = true,
                AcquireAnswer::Done(_) => return Ok(Err("another run has stored its result".to_owned())),
                AcquireAnswer::Busy(busy) => return Ok(Err(busy.reason)),
                AcquireAnswer::Refused(refusal) => return Ok(Err(refusal.reason)),
                AcquireAnswer::TokenReleased(reason) => return Ok(Err(reason)),
                AcquireAnswer::NotNow(trouble) | AcquireAnswer::MayNotWait(trouble) => return Err(trouble),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else it would wait for room in the pipe for ever, and its lease would be renewed for ever.
    #[tokio::test]
    async fn a_command_hears_of_it_if_its_output_is_not_passed_on_any_more() -> io::Result<()> {
        let (output, mut command) = CommandOutput::open(1)?;
        let CommandOutput { printing, pipe: _pipe, .. } = output;
        printing.abort();
        assert!(printing.await.is_err());
        let written = command.write(b"x").map_err(|error| error.kind());
        assert_eq!(written, Err(io::ErrorKind::BrokenPipe));
        Ok(())
    }
}
