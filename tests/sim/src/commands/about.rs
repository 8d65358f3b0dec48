//! Commands of the server itself, and of the connection.

use super::{Call, NO_INTEGER, either, integer, not_simulated};
use crate::reply::Reply;
use crate::state::{Layout, State};

/// The version of Redis whose rules are simulated.
const VERSION: &str = "7.0.15";

pub(super) fn ping(_: &mut State, call: &Call) -> Reply {
    match call.words {
        [_] => Reply::status("PONG"),
        [_, text] => Reply::Bulk(text.clone()),
        _ => Reply::error("ERR wrong number of arguments for 'ping' command"),
    }
}

pub(super) fn time(state: &mut State, _: &Call) -> Reply {
    let part = |number: u64| Reply::bulk(number.to_string());
    Reply::Array(vec![part(state.now_us / 1_000_000), part(state.now_us % 1_000_000)])
}

pub(super) fn select(state: &mut State, call: &Call) -> Reply {
    match integer(&call.words[1]) {
        Ok(0) => Reply::OK,
        Ok(_) if state.cluster.is_some() => Reply::error("ERR SELECT is not allowed in cluster mode"),
        Ok(_) => not_simulated("databases besides the first"),
        Err(_) => NO_INTEGER,
    }
}

pub(super) fn hello(state: &mut State, call: &Call) -> Reply {
    either(greet(state, call))
}

fn greet(state: &mut State, call: &Call) -> Result<Reply, Reply> {
    let mode = state.layout_name();
    let role = if state.follows.is_some() { "replica" } else { "master" };
    let id = call.session as i64;
    let Some(session) = state.sessions.get_mut(&call.session) else { return Ok(Reply::Nil) };
    if let Some(version) = call.words.get(1) {
        let refused = Reply::error("NOPROTO unsupported protocol version");
        let version = integer(version)
            .map_err(|_| Reply::error("ERR Protocol version is not an integer or out of range"))?;
        session.is_resp3 = match version {
            2 => false,
            3 => true,
            _ => return Err(refused),
        };
    }
    if call.words.len() > 2 {
        return Err(not_simulated("passwords"));
    }
    let text = |text: &str| Reply::bulk(text);
    Ok(Reply::Map(vec![
        text("server"),
        text("redis"),
        text("version"),
        text(VERSION),
        text("proto"),
        Reply::Int(if session.is_resp3 { 3 } else { 2 }),
        text("id"),
        Reply::Int(id),
        text("mode"),
        text(mode),
        text("role"),
        text(role),
        text("modules"),
        Reply::Array(Vec::new()),
    ]))
}

pub(super) fn asking(state: &mut State, call: &Call) -> Reply {
    if state.cluster.is_none() {
        return NO_CLUSTER;
    }
    if let Some(session) = state.sessions.get_mut(&call.session) {
        session.is_asking = true;
    }
    Reply::OK
}

/// A reply comes once enough replicas have what this connection wrote; see [`State::settle_wait`].
pub(super) fn wait(state: &mut State, call: &Call) -> Reply {
    either(begin_to_wait(state, call))
}

fn begin_to_wait(state: &mut State, call: &Call) -> Result<Reply, Reply> {
    if state.follows.is_some() {
        return Err(Reply::error(
            "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is \
             configured to be writable (which is not the default) writes to replicas are just local and are not propagated.",
        ));
    }
    let needed = integer(&call.words[1]).map_err(|_| NO_INTEGER)?;
    let timeout_ms =
        integer(&call.words[2]).map_err(|_| Reply::error("ERR timeout is not an integer or out of range"))?;
    if timeout_ms < 0 {
        return Err(Reply::error("ERR timeout is negative"));
    }
    let written = state.sessions.get(&call.session).map_or(0, |session| session.written);
    let count = state.replicas_with(written);
    if count as i64 >= needed {
        return Ok(Reply::Int(count as i64));
    }
    let ends_ms = (timeout_ms > 0).then(|| state.now_ms + timeout_ms as u64);
    if let Some(session) = state.sessions.get_mut(&call.session) {
        session.waits = Some((needed, ends_ms));
    }
    Ok(Reply::Nil)
}

const NO_CLUSTER: Reply = Reply::error("ERR This instance has cluster support disabled");

pub(super) fn cluster_info(state: &mut State, _: &Call) -> Reply {
    let Some(cluster) = &state.cluster else { return NO_CLUSTER };
    let word = if cluster.is_up { "ok" } else { "fail" };
    Reply::Verbatim(format!("cluster_state:{word}\r\n"))
}

pub(super) fn cluster_slots(state: &mut State, _: &Call) -> Reply {
    state.cluster.as_ref().map_or(NO_CLUSTER, |cluster| cluster.slots())
}

/// Only of the settings that the gateway asks for.
pub(super) fn config_get(state: &mut State, call: &Call) -> Reply {
    let fsync = if state.conditions.syncs_each_write { "always" } else { "everysec" };
    let replicas = state.conditions.replicas_to_write.to_string();
    let known = [
        ("save", ""),
        ("appendfsync", fsync),
        ("no-appendfsync-on-rewrite", "no"),
        ("min-replicas-to-write", &*replicas),
    ];
    let asked = known.into_iter().filter(|(name, _)| (2..call.words.len()).any(|at| call.is(at, name)));
    Reply::Map(asked.flat_map(|(name, value)| [Reply::bulk(name), Reply::bulk(value)]).collect())
}

/// Every user may do everything.
pub(super) fn acl_dryrun(_: &mut State, call: &Call) -> Reply {
    let is_known = |names: &[&str]| names.iter().any(|name| call.is(3, name));
    match super::find(&call.words[3..]) {
        _ if !call.is(2, "default") => {
            Reply::failed(format!("ERR User '{}' not found", String::from_utf8_lossy(&call.words[2])))
        }
        None if !is_known(&["eval", "evalsha", "pexpireat"]) => {
            Reply::failed(format!("ERR Command '{}' not found", String::from_utf8_lossy(&call.words[3])))
        }
        _ => Reply::OK,
    }
}

pub(super) fn info(state: &mut State, call: &Call) -> Reply {
    let is_asked = |name: &str| call.words.len() == 1 || (1..call.words.len()).any(|at| call.is(at, name));
    let sections = [
        ("server", about_server(state)),
        ("memory", about_memory(state)),
        ("persistence", about_persistence(state)),
        ("replication", about_replication(state)),
        ("stats", "# Stats\r\nevicted_keys:0\r\n".to_owned()),
    ];
    let asked = sections.into_iter().filter(|(name, _)| is_asked(name)).map(|(_, text)| text);
    Reply::Verbatim(asked.collect::<Vec<_>>().join("\r\n"))
}

fn about_server(state: &State) -> String {
    let (mode, run_id, now_us) = (state.layout_name(), &state.identity.run_id, state.now_us);
    format!(
        "# Server\r\nredis_version:{VERSION}\r\nredis_mode:{mode}\r\nrun_id:{run_id}\r\nserver_time_usec:{now_us}\r\n"
    )
}

fn about_memory(state: &State) -> String {
    let conditions = &state.conditions;
    let (used, most) = if conditions.is_full { (200, 100) } else { (100, 0) };
    let policy = if conditions.evicts { "allkeys-lru" } else { "noeviction" };
    let most = if conditions.evicts { 1_000 } else { most };
    format!(
        "# Memory\r\nused_memory:{used}\r\nmaxmemory:{most}\r\nmaxmemory_policy:{policy}\r\nmem_not_counted_for_evict:0\r\n"
    )
}

fn about_persistence(state: &State) -> String {
    let loads = u8::from(state.conditions.is_loading);
    format!("# Persistence\r\nloading:{loads}\r\naof_enabled:{}\r\n", u8::from(state.conditions.has_file))
}

fn about_replication(state: &State) -> String {
    let mut text = match state.follows {
        Some(_) => {
            let link = if state.conditions.is_cut_from_primary { "down" } else { "up" };
            format!("# Replication\r\nrole:slave\r\nmaster_link_status:{link}\r\n")
        }
        None => "# Replication\r\nrole:master\r\n".to_owned(),
    };
    text += &format!("connected_slaves:{}\r\n", state.acknowledged.len());
    if let Some(good) = state.good_replicas() {
        text += &format!("min_slaves_good_slaves:{good}\r\n");
    }
    let (id, offset) = (&state.identity.replication_id, state.offset());
    text + &format!("master_replid:{id}\r\nmaster_repl_offset:{offset}\r\n")
}

/// What a sentinel knows of the primary of this name.
fn primary_of<'a>(state: &'a State, call: &Call) -> Option<&'a (String, u16, u64)> {
    let Layout::Sentinel(primaries) = &state.layout else { return None };
    primaries.get(std::str::from_utf8(&call.words[2]).ok()?)
}

pub(super) fn sentinel_primary(state: &mut State, call: &Call) -> Reply {
    let Some((host, port, epoch)) = primary_of(state, call) else {
        return Reply::error("ERR No such master with that name");
    };
    let (port, epoch) = (port.to_string(), epoch.to_string());
    let fields = [("ip", host), ("port", &port), ("config-epoch", &epoch)];
    Reply::Map(
        fields.into_iter().flat_map(|(name, value)| [Reply::bulk(name), Reply::bulk(&**value)]).collect(),
    )
}

pub(super) fn sentinel_address(state: &mut State, call: &Call) -> Reply {
    match primary_of(state, call) {
        Some((host, port, _)) => Reply::Array(vec![Reply::bulk(&**host), Reply::bulk(port.to_string())]),
        None => Reply::Nil,
    }
}

/// The same of each, as where their files were copied.
pub(super) fn sentinel_id(_: &mut State, _: &Call) -> Reply {
    Reply::bulk("0123456789abcdef0123456789abcdef01234567")
}
