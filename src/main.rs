//! The program: arguments, log, socket, signals and exit code.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use clap::error::ErrorKind;
use fencepost::api::{self, Admission, App, AppState};
use fencepost::clock::SystemClock;
use fencepost::config::{Cli, Command, LogFormat, LogLevel, Settings, StoreSettings};
use fencepost::run;
use fencepost::server;
use fencepost::service::LockService;
use fencepost::store::LockStore;
use fencepost::store::embedded::{self, EmbeddedSettings, EmbeddedStore};
use fencepost::store::redis::{open as open_redis, survey as survey_redis};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::LevelFilter;

/// The exit code when the settings are wrong.
const WRONG_SETTINGS: u8 = 2;
/// How long takes-back may go on after the last request.
const LAST_TAKES_BACK: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.into_command(),
        Err(error) => return explain_arguments(&error),
    };
    let done = match command {
        Command::Openapi => print_document(),
        Command::Check(args) => match args.check() {
            Ok(store) => return check(&store),
            Err(error) => return complain(&error.to_string(), WRONG_SETTINGS),
        },
        Command::Run(args) => match args.check() {
            Ok(settings) => return run::run(&settings),
            Err(error) => return complain(&error.to_string(), WRONG_SETTINGS),
        },
        Command::Serve(args) => match args.check() {
            Ok(settings) => serve(settings),
            Err(error) => return complain(&error.to_string(), WRONG_SETTINGS),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&format!("{error:#}"), 1),
    }
}

/// `--help` and `--version` go where they are expected; what is wrong is said in one line.
fn explain_arguments(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Nothing can be done for a reader that has closed its end.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let first_paragraph = text.split("\n\n").next().unwrap_or_default();
    // A store's address that was put in the wrong place may hold a password.
    let words =
        first_paragraph.split_whitespace().map(|word| if word.contains("://") { "'…'" } else { word });
    let line = words.collect::<Vec<_>>().join(" ");
    complain(line.trim_start_matches("error: "), WRONG_SETTINGS)
}

fn complain(problem: &str, code: u8) -> ExitCode {
    // Where standard error is closed, the exit code has to do.
    let _ = writeln!(io::stderr(), "fencepost: {problem}");
    ExitCode::from(code)
}

fn print_document() -> anyhow::Result<()> {
    write!(io::stdout(), "{}", api::openapi_json()).context("cannot print the document")
}

/// Says what the store is, and by the exit code whether it can be used.
#[tokio::main]
async fn check(store: &StoreSettings) -> ExitCode {
    let survey = match store {
        StoreSettings::File(path) => embedded::survey(path),
        StoreSettings::Memory => embedded::survey_memory(),
        StoreSettings::Redis(address, redis) => match survey_redis(address, redis).await {
            Ok(survey) => survey,
            Err(error) => return complain(&error.to_string(), 1),
        },
    };
    match write!(io::stdout(), "{survey}") {
        Ok(()) if survey.is_usable() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => complain(&format!("cannot print what was found: {error}"), 1),
    }
}

#[tokio::main]
async fn serve(settings: Settings) -> anyhow::Result<()> {
    start_log(settings.log_format, settings.log_level);
    let listener = TcpListener::bind(&settings.listen)
        .await
        .with_context(|| format!("cannot listen on {}", settings.listen))?;
    let address = listener.local_addr().context("the socket has no address")?;
    refuse_unsafe(&settings).await?;
    let store = open_store(&settings)?;
    let draining = CancellationToken::new();
    let state = AppState::new(App {
        service: LockService::new(store, settings.store_timeout, settings.mark_ttl)
            .with_max_waiters(settings.max_waiters)
            .with_max_holds(settings.max_holds),
        limits: settings.limits,
        admission: Admission {
            only_known_hosts: address.ip().is_loopback(),
            allowed_hosts: settings.allowed_hosts,
            allowed_origins: settings.allowed_origins,
        },
        draining: draining.clone(),
    });
    cancel_on_signal(draining.clone())?;
    if !address.ip().is_loopback() {
        tracing::warn!("listening beyond this machine: whoever reaches this address can take locks");
    }
    tracing::info!("listening on http://{address}, with an introduction at http://{address}/docs");
    let (waiting, drains) = (state.clone(), draining.clone());
    tokio::spawn(async move {
        drains.cancelled().await;
        waiting.service.stop_waiting();
    });
    let drained = server::serve(listener, api::app(state.clone()), settings.server, draining).await;
    state.service.close(LAST_TAKES_BACK).await;
    tracing::info!(connections_cut = drained.cut_connections, "stopped");
    Ok(())
}

/// Ends the start on a store that answers, and that locks are not safe on. One that cannot be reached is waited for,
/// and judged when it is there.
async fn refuse_unsafe(settings: &Settings) -> anyhow::Result<()> {
    let StoreSettings::Redis(address, redis) = &settings.store else { return Ok(()) };
    let Ok(survey) = timeout(settings.store_timeout, survey_redis(address, redis)).await else {
        return Ok(());
    };
    let refusals = survey?.refusals;
    anyhow::ensure!(refusals.is_empty(), "{address} is refused: {}", refusals.join("; "));
    Ok(())
}

fn open_store(settings: &Settings) -> anyhow::Result<Arc<dyn LockStore>> {
    let embedded = EmbeddedSettings { mark_ttl: settings.mark_ttl, line: settings.line };
    Ok(match &settings.store {
        StoreSettings::File(path) => {
            let store = EmbeddedStore::open(path, embedded, Arc::new(SystemClock))?;
            tracing::info!(file = %path.display(), "locks live in this file");
            Arc::new(store)
        }
        StoreSettings::Memory => {
            tracing::warn!("locks live in memory: all of them are lost when this process ends");
            Arc::new(EmbeddedStore::in_memory(embedded, Arc::new(SystemClock))?)
        }
        StoreSettings::Redis(address, settings) => {
            tracing::info!(store = %address, "locks live in Redis");
            open_redis(address, settings)?
        }
    })
}

fn cancel_on_signal(draining: CancellationToken) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: draining"),
            _ = interrupt.recv() => tracing::info!("SIGINT: draining"),
        }
        draining.cancel();
    });
    Ok(())
}

fn start_log(format: LogFormat, level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    // A panic is a line of the log like any other, in its form.
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a fault of the program")));
}
