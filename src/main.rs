//! The program: arguments, socket, signals and exit code.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::error::ErrorKind;
use fencepost::access::Keyring;
use fencepost::api::{self, Admission, App, AppState, KnownHosts};
use fencepost::audit::{Audit, Event};
use fencepost::client::run::{self, RunSettings};
use fencepost::client::shell;
use fencepost::client::{build_runtime, say};
use fencepost::clock::SystemClock;
use fencepost::config::{
    Action, KeysFile, Settings, SettingsError, StoreSettings, explain_arguments, misspelt_variables,
    read_arguments, settings_page, unknown_variables, wrong_variables,
};
use fencepost::files::{self, HeldHangups, hangups, watch_files};
use fencepost::log::Log;
use fencepost::server::{self, ServerSettings, Tls};
use fencepost::service::LockService;
use fencepost::store::embedded::{self, EmbeddedSettings, EmbeddedStore};
use fencepost::store::redis::diagnose as diagnose_redis;
use fencepost::store::{LockStore, diagnostics::Diagnostics, open as open_redis};
use fencepost::telemetry::metrics::{SettingsFile, metrics};
use fencepost::telemetry::traces::Traces;
use jiff::Timestamp;
use mimalloc::MiMalloc;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Each request takes and frees small pieces of memory. This allocator needs a third of the system's time for that.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The exit code when the settings are wrong.
const WRONG_SETTINGS: u8 = 2;
/// How long roll-backs may go on after the last request.
const LAST_TAKES_BACK: Duration = Duration::from_secs(2);
/// How long the last traces, the last lines of a log, or one line in place of a log, may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let held = HeldHangups::new();
    let (command, given) = match read_arguments() {
        Ok(read) => read,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return shell::report(0, || error.print());
        }
        Err(error) => return complain(&explain_arguments(&error), WRONG_SETTINGS),
    };
    match act(command, held) {
        Ok(status) => status,
        Err(error) => match error.downcast_ref::<SettingsError>() {
            Some(error) => complain(&given.explain(error), WRONG_SETTINGS),
            None => complain(&format!("{error:#}"), 1),
        },
    }
}

fn act(action: Action, held: HeldHangups) -> anyhow::Result<ExitCode> {
    // Other commands end by it, and pass it on to what they start.
    let held = matches!(action, Action::Serve(_)).then_some(held);
    if let Some(wrong) = wrong_variables(&action) {
        return Ok(complain(&wrong, WRONG_SETTINGS));
    }
    match action {
        Action::Openapi => return Ok(shell::show(api::openapi_json())),
        Action::Completions(args) => return Ok(shell::show(&args.completions())),
        Action::Settings => return Ok(shell::show(&settings_page())),
        Action::Man(args) => args.write().context("cannot write the manual")?,
        Action::Key(command) => return Ok(shell::act_on_keys(&command.check()?)),
        Action::Check(args) => {
            let store = args.check()?;
            tell_unknown(unknown_variables());
            let runtime = build_runtime(&mut Builder::new_multi_thread()).context("cannot start")?;
            return Ok(runtime.block_on(check(&store)));
        }
        Action::Run(args) => return run_command(|| args.check()),
        Action::Once(args) => return run_command(|| args.check()),
        Action::Shell(action) => {
            let command = action.check()?;
            tell_unknown(misspelt_variables());
            return Ok(shell::act(&command));
        }
        Action::Serve(args) => return serve_with_threads(args.check()?, held),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command as a client of gateways.
fn run_command(check: impl FnOnce() -> Result<RunSettings, SettingsError>) -> anyhow::Result<ExitCode> {
    // Before the settings are read: a file that they name may be one that can be read once.
    if let Some(status) = run::run_apart() {
        return Ok(status);
    }
    let settings = check()?;
    tell_unknown(misspelt_variables());
    Ok(run::run(&settings))
}

/// Says of each variable that is ignored that it is.
fn tell_unknown(variables: Vec<String>) {
    for line in variables {
        complain(&line, 0);
    }
}

fn complain(problem: &str, code: u8) -> ExitCode {
    say(problem);
    ExitCode::from(code)
}

/// Prints what the store is. The exit code says whether it can be used.
async fn check(store: &StoreSettings) -> ExitCode {
    let survey = match store {
        StoreSettings::File(path, _) => embedded::survey(path),
        StoreSettings::Memory(_) => embedded::survey_memory(),
        StoreSettings::Redis(address, redis) => match diagnose_redis(address, redis).await {
            Ok(survey) => survey,
            Err(error) => return complain(&error.to_string(), 1),
        },
    };
    shell::report(u8::from(!survey.is_usable()), || write!(io::stdout(), "{survey}"))
}

/// With one thread, a runtime for one thread is used: it never has to wake another.
fn serve_with_threads(mut settings: Settings, held: Option<HeldHangups>) -> anyhow::Result<ExitCode> {
    let log =
        Log::start(settings.observe.logs_json, settings.observe.log_level).context("cannot start the log")?;
    let _ending = log.ends_within(LAST_WORDS);
    for line in unknown_variables() {
        tracing::warn!("{line}");
    }
    let mut builder = match settings.threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    make_room(&mut settings);
    let runtime = build_runtime(builder.worker_threads(settings.threads)).context("cannot start")?;
    let ended = runtime.block_on(serve(settings, held));
    // A name that is still being resolved must not delay the end.
    runtime.shutdown_background();
    ended
}

async fn serve(settings: Settings, held: Option<HeldHangups>) -> anyhow::Result<ExitCode> {
    let audit = Arc::new(match settings.observe.audit_log.clone() {
        Some(target) => Audit::open(target).map_err(|error| {
            SettingsError::new("--audit-log", format!("cannot open the audit log: {error}"))
        })?,
        None => Audit::off(),
    });
    let hangups = hangups().context("cannot listen for SIGHUP")?;
    tokio::spawn(audit.clone().keep_open(hangups.subscribe()));
    drop(held);
    let (draining, at_once) = (CancellationToken::new(), CancellationToken::new());
    server::end_on_signals(draining.clone(), at_once.clone()).context("cannot listen for SIGTERM")?;
    if let Some(tls) = &settings.server.tls {
        keep_tls(tls.clone(), hangups.subscribe(), audit.clone());
    }
    let scheme = if settings.server.tls.is_some() { "https" } else { "http" };
    // A name that is resolved, a store that does not answer, and a disk may take long.
    let Some(opened) = draining.run_until_cancelled(open(&settings)).await else {
        audit.finish(LAST_WORDS);
        tracing::info!("stopped before it listened");
        return Ok(ExitCode::SUCCESS);
    };
    let (listener, address, metrics_listener, store) = opened?;
    let (is_loopback, access) = (address.ip().to_canonical().is_loopback(), settings.access.clone());
    let keyring = access.keys.as_ref().map(|file| Arc::new(Keyring::new(file.keys.clone())));
    let state = AppState::new(App {
        service: LockService::new(store, settings.store_timeout, settings.mark_ttl)
            .with_max_waiters(settings.max_waiters, settings.line.max_waiters_per_key)
            .with_max_holds(settings.max_holds)
            .with_max_watchers(settings.max_watchers),
        limits: settings.limits,
        admission: Admission {
            known_hosts: match (&keyring, is_loopback) {
                (Some(_), _) => KnownHosts::All,
                (None, false) => KnownHosts::Unbindable,
                (None, true) => KnownHosts::Loopback,
            },
            allowed_hosts: access.allowed_hosts,
            allowed_origins: access.allowed_origins,
            speaks_tls: settings.server.tls.is_some(),
        },
        serves_metrics: metrics_listener.is_none(),
        keyring: keyring.clone(),
        audit: audit.clone(),
        draining: draining.clone(),
        facades: settings.facades.clone(),
    });
    let traces = match &settings.observe.otlp_endpoint {
        Some(endpoint) => Some(Traces::start(endpoint).context("cannot send traces")?),
        None => None,
    };
    metrics().set_build(settings.store.kind());
    if let Some(listener) = metrics_listener {
        serve_metrics(listener, &state, settings.observe.metrics_connections)?;
    }
    let detail = format!("fencepost {} begins", env!("CARGO_PKG_VERSION"));
    let in_force = settings.in_force(address, keyring.as_deref());
    audit.record(Event::Configuration { what: "start", is_in_force: true, detail, settings: in_force });
    if let (Some(file), Some(keyring)) = (access.keys, keyring) {
        tokio::spawn(keep_keys(file.path, keyring, hangups.subscribe(), audit.clone()));
    }
    settings.access.warn_if_exposed(is_loopback, settings.server.tls.is_some());
    tracing::info!("listening on {scheme}://{address}, with an introduction at {scheme}://{address}/docs");
    // systemd waits for this where the unit says so, and nothing else does.
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::warn!(%error, "cannot tell the socket of NOTIFY_SOCKET that the gateway is ready");
    }
    let (waiting, drains) = (state.clone(), draining.clone());
    tokio::spawn(async move {
        drains.cancelled().await;
        waiting.service.stop_waiting();
    });
    let counted = ServerSettings { counts: Arc::clone(&metrics().connections), ..settings.server };
    let stopped = at_once.run_until_cancelled(async {
        let drained = server::serve(listener, api::app(state.clone()), counted, draining).await;
        let is_closed = state.service.close(LAST_TAKES_BACK).await;
        if let Some(traces) = traces {
            traces.finish(LAST_WORDS).await;
        }
        (drained.cut_connections, is_closed)
    });
    let stopped = stopped.await;
    audit.finish(LAST_WORDS);
    match stopped {
        Some((connections_cut, true)) => {
            tracing::info!(connections_cut, "stopped");
            return Ok(ExitCode::SUCCESS);
        }
        Some(_) => tracing::error!(
            "stopped, but the disk of the file store does not answer: the file is not closed. What was answered is in it"
        ),
        None => tracing::error!("stopped at once: requests under way were cut off"),
    }
    // To drop the store would wait for its disk. A start needs no file that was closed.
    std::mem::forget(state);
    Ok(ExitCode::FAILURE)
}

type Opened = (TcpListener, SocketAddr, Option<TcpListener>, Arc<dyn LockStore>);

/// Binds the sockets, for requests and for the metrics, and opens the store, unless an address or the store is unsafe.
async fn open(settings: &Settings) -> anyhow::Result<Opened> {
    let (place, access) = (&settings.listen, &settings.access);
    let listener = server::listen(place).await.with_context(|| format!("cannot listen on {place}"))?;
    let address = listener.local_addr().context("the socket has no address")?;
    let metrics_listener = match &settings.observe.metrics_listen {
        Some(address) => {
            let listener = server::listen(address).await;
            Some(listener.with_context(|| format!("cannot listen on {address} for the metrics"))?)
        }
        None => None,
    };
    // The name may have resolved to another address when the settings were checked.
    let is_meant =
        address.ip().to_canonical().is_loopback() || access.keys.is_some() || access.allows_anonymous;
    anyhow::ensure!(is_meant, "{address} can be reached from other machines, and no API keys are in use");
    refuse_unsafe(settings).await?;
    let settings = settings.clone();
    let store = spawn_blocking(move || open_store(&settings)).await??;
    Ok((listener, address, metrics_listener, store))
}

/// Serves the metrics on an address of their own for as long as the process lives: the drain is seen there too.
fn serve_metrics(listener: TcpListener, state: &AppState, connections: usize) -> anyhow::Result<()> {
    let address = listener.local_addr().context("the socket for the metrics has no address")?;
    tracing::info!("metrics are at http://{address}/metrics");
    tokio::spawn(server::serve(
        listener,
        api::metrics_app(state.clone()),
        ServerSettings::for_metrics(connections),
        CancellationToken::new(),
    ));
    Ok(())
}

/// Ends the start on a store that answers, and that locks are not safe on. One that cannot be reached is waited for,
/// and judged when it is there.
async fn refuse_unsafe(settings: &Settings) -> anyhow::Result<()> {
    let StoreSettings::Redis(address, redis) = &settings.store else { return Ok(()) };
    let Ok(survey) = timeout(settings.store_timeout, diagnose_redis(address, redis)).await else {
        return Ok(());
    };
    let Diagnostics { refusals, unreadable, .. } = survey?;
    for value in unreadable {
        tracing::error!("cannot be read: {value}");
    }
    anyhow::ensure!(refusals.is_empty(), "{address} is refused: {}", refusals.join("; "));
    Ok(())
}

fn open_store(settings: &Settings) -> anyhow::Result<Arc<dyn LockStore>> {
    let (mark_ttl, line) = (settings.mark_ttl, settings.line);
    let embedded = |once_memory_bytes| EmbeddedSettings { mark_ttl, line, once_memory_bytes };
    Ok(match &settings.store {
        StoreSettings::File(path, once_memory_bytes) => {
            let store = EmbeddedStore::open(path, embedded(*once_memory_bytes), Arc::new(SystemClock))?;
            tracing::info!(file = %path.display(), "locks live in this file");
            Arc::new(store)
        }
        StoreSettings::Memory(once_memory_bytes) => {
            tracing::warn!("locks live in memory: all of them are lost when this process ends");
            Arc::new(EmbeddedStore::in_memory(embedded(*once_memory_bytes), Arc::new(SystemClock))?)
        }
        StoreSettings::Redis(address, settings) => {
            tracing::info!(store = %address, "locks live in Redis");
            open_redis(address, settings)?
        }
    })
}

/// Raises the limit of open files as far as connections need it, and says so where the system does not allow it.
fn make_room(settings: &mut Settings) {
    let wanted = settings.server.max_connections;
    let of_metrics = settings.observe.metrics_connections;
    let room = server::make_room(wanted.saturating_add(of_metrics));
    // Where there is too little for both, an eighth is for collectors.
    let of_metrics = of_metrics.min(room.saturating_sub(wanted).max(room.div_ceil(8)));
    settings.observe.metrics_connections = of_metrics;
    let most = wanted.min(room.saturating_sub(of_metrics)).max(1);
    if most < wanted {
        tracing::warn!(
            max_connections = wanted,
            room_for = most,
            "the system allows fewer open files than --max-connections needs: raise the hard limit (ulimit -Hn, LimitNOFILE=)"
        );
        settings.limit_connections(most);
    }
}

/// Reads the certificates anew when their files change, and when somebody asks for it.
fn keep_tls(tls: Tls, asked: watch::Receiver<()>, audit: Arc<Audit>) {
    announce(&tls);
    let (paths, said, again) = (tls.files().paths(), Ok(described(&tls)), tls.clone());
    let tell_open =
        files::tells_open(paths.clone(), "decide whom the gateway trusts, or who is taken for it");
    let read = move || {
        tell_open();
        let (put_into_force, tls) = (again.read_again().map_err(|error| error.to_string())?, again.clone());
        Ok(move || put_into_force().map(|()| described(&tls)).map_err(|error| error.to_string()))
    };
    tokio::spawn(async move {
        let tell = |read: &files::Read| {
            if read.is_ok() {
                announce(&tls);
            }
            audit.record(Event::changed("certificates", read.clone()));
        };
        watch_files(SettingsFile::Certificate, paths, asked, said, read, tell).await;
    });
}

/// What is served, in a line.
fn described(tls: &Tls) -> String {
    let (valid_from, valid_until) = tls.valid().into_inner();
    format!("{}, valid from {valid_from} until {valid_until}", tls.files().certificate.display())
}

/// Says what is served. Clients refuse a certificate out of its time, and tell only their own users.
fn announce(tls: &Tls) {
    let (valid, file) = (tls.valid(), tls.files().certificate.display());
    let (valid_from, valid_until) = valid.clone().into_inner();
    metrics().certificate_expires.with_label_values::<&str>(&[]).set(valid_until.as_second());
    if valid.contains(&Timestamp::now()) {
        tracing::info!(%file, %valid_until, "new connections are served with this certificate");
    } else {
        tracing::warn!(%file, %valid_from, %valid_until, "new connections are served with a certificate that is not valid now");
    }
}

/// Puts the keys into force that stand in the file, whenever it changes. One that is wrong changes nothing.
async fn keep_keys(path: PathBuf, keyring: Arc<Keyring>, asked: watch::Receiver<()>, audit: Arc<Audit>) {
    let file = path.clone();
    let tell_open = files::tells_open(vec![path.clone()], "give themselves every right");
    let read = move || {
        tell_open();
        let keyring = keyring.clone();
        KeysFile::read_settled(&file).map(|file| move || Ok(keyring.replace(file.keys)))
    };
    let tell = |read: &files::Read| audit.record(Event::changed("keys", read.clone()));
    watch_files(SettingsFile::Keys, vec![path], asked, Ok(String::new()), read, tell).await;
}
