//! The scripts of the gateway, put together as `scripts!` says it, and what each of them is told.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// What stands before each script, so that no real time decides anything: the clock is a key, and lengths of time are multiples of
/// a thousand seconds.
const PRELUDE: &str = r"
local UNIT_MS = 1000000
local real = redis
local function whole(number) return string.format('%.0f', number) end
local function longer(length_ms)
  local number = tonumber(length_ms)
  return number and number > 0 and whole(math.ceil(number / UNIT_MS) * UNIT_MS) or length_ms
end
local function timeless(call)
  return function(name, ...)
    if name == 'TIME' then
      local seconds, micros = string.match(real.call('GET', '{0}clock') or '', '^(%d+) (%d+)$')
      return { seconds or '0', micros or '0' }
    end
    local args = { ... }
    if name == 'PTTL' then
      local left_ms = call(name, ...)
      return type(left_ms) == 'number' and left_ms > 0 and math.floor(left_ms / UNIT_MS + 0.5) * UNIT_MS or left_ms
    end
    if name == 'PEXPIRE' then args[2] = longer(args[2]) end
    if name == 'SET' then
      for i = 3, #args do
        if args[i] == 'PX' then args[i + 1] = longer(args[i + 1]) end
      end
    end
    return call(name, unpack(args))
  end
end
local redis = {
  call = timeless(real.call), pcall = timeless(real.pcall), error_reply = real.error_reply, acl_check_cmd = real.acl_check_cmd,
}
";

/// All that is stored, in the order of its names.
pub const DUMP: &str = r"
local all, names = {}, redis.call('KEYS', '*')
table.sort(names)
for i, name in ipairs(names) do
  local kind, value = redis.call('TYPE', name).ok, nil
  if kind == 'string' then value = redis.call('GET', name) end
  if kind == 'zset' then value = redis.call('ZRANGE', name, 0, -1, 'WITHSCORES') end
  if kind == 'hash' then
    local fields = redis.call('HGETALL', name)
    value = {}
    for i = 1, #fields, 2 do value[#value + 1] = fields[i] .. ' = ' .. fields[i + 1] end
    -- Large ones have no order.
    table.sort(value)
  end
  local left_ms = redis.call('PTTL', name)
  all[i] = { name, kind, value, left_ms > 0 and math.floor(left_ms / 1000000 + 0.5) or left_ms }
end
return all
";

/// What a script is called, which keys it has, and which arguments: see `draw.rs`. What stands behind a bar may be left out.
const CALLS: [(&str, &str, &str); 44] = [
    ("redis ACQUIRE", "L S Q A D G H E V M F", "T a m k mode t o i | g n s p | x x slots"),
    ("redis RENEW", "L", "T t e"),
    ("redis RENEW", "L L", "T t e T t e"),
    ("redis RENEW_SLOT", "L S Q A D G H E V", "T t e"),
    ("redis RELEASE", "L S Q A D G H E V | M", "T - m k"),
    ("redis ROLL_BACK", "L S Q A D G H E V | M", "T a m k f p x"),
    ("redis INSPECT", "L Q A H E V", "T"),
    ("redis LIST", "L Q A H E V", "6"),
    ("redis LIST", "L L", "1"),
    ("redis BREAK", "L S Q A D G H E V", "- - m k #"),
    ("redis HEARTBEAT", "G D", "g k b"),
    ("redis ACK", "L", "T #"),
    ("redis ACK_SLOT", "L H", "T #"),
    ("redis LEARN", "F", "i | c how"),
    ("redis LEARN", "F", "i"),
    ("fast TAKE_FREE", "L S M F", "i ta t"),
    ("fast TAKE_FREE", "L S M L S M F", "i ta t ta t so so"),
    ("fast FREE_OWN", "L S M", "m T"),
    ("fast FREE_OWN", "L L S S M", "m T T"),
    ("once batched BEGIN", "O M F", "i memory f T a t keep print o f cf"),
    ("once batched BEGIN", "O M O M F", "i memory f T a t keep print o f cf T a t keep print o f cf"),
    ("once batched STORE", "O", "T o# okeep status result room"),
    ("once batched STORE", "O O", "T o# okeep status result room T o# okeep status result room"),
    ("once RENEW", "O", "T o# t memory"),
    ("once GIVE_UP", "O | M", "T f memory m"),
    ("once UNDO", "O M", "T a memory m"),
    ("once BREAK", "O", "o# f memory"),
    ("once LOOK", "O", "T memory"),
    ("once LOOK", "O O", "- memory"),
    ("once ACK", "O", "T #"),
    ("quorum ACQUIRE", "R L M W", "i c u B T a gc t # o ch s m f x x"),
    ("quorum GIVE_UP", "R L W", "i c u B T a #"),
    ("quorum ROLL_BACK", "R L M W", "i c u B T a m x #"),
    ("quorum RELEASE", "R L M W", "i c u B T m answer f #"),
    ("quorum RENEW", "R L", "i c u B T t e"),
    ("quorum REPAIR", "R L M W", "i c U B T # o t # e x x m"),
    ("quorum INSPECT", "R L", "i c u B T"),
    ("quorum LIST", "R L L", "i c u B"),
    ("quorum BREAK", "R L M W", "i c u B # m"),
    ("quorum LOOK", "R", "i c list m e id"),
    ("quorum TAKE_FREE", "R L M", "i c B u t # v"),
    ("quorum TAKE_FREE", "R L M L M", "i c B u t # v B u t # v"),
    ("quorum FREE_OWN", "R L W", "i c T"),
    ("quorum FREE_OWN", "R L L W W", "i c T T"),
];
/// Those of the record.
const RECORD_CALLS: [(&str, &str, &str); 2] =
    [("quorum RECONFIGURE", "R", "i kind c list m # c U since"), ("quorum HIGH", "R", "i c f")];

/// One way of calling a script.
pub struct Call {
    pub name: String,
    pub text: String,
    pub hash: String,
    pub keys: &'static str,
    pub args: &'static str,
}

/// All ways of calling all scripts.
pub struct Scripts {
    pub calls: Vec<Call>,
    pub dump_hash: String,
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store")
}

/// The texts of scripts that a file names, each by its name.
fn texts_in(file: &str) -> Vec<(String, String)> {
    let path = source().join(file);
    let text = fs::read_to_string(&path).unwrap();
    let line = Regex::new(r#"(?m)^    (?:pub\(\w+\) )?([A-Z_]+): ((?:\w+|"[^"]+")(?:, (?:\w+|"[^"]+"))*);$"#)
        .unwrap();
    let part = |part: &str| match part.trim_matches('"') {
        file if part.starts_with('"') => fs::read_to_string(path.with_file_name("").join(file)).unwrap(),
        shared => fs::read_to_string(source().join(format!("redis/scripts/shared/{shared}.lua"))).unwrap(),
    };
    let whole =
        |parts: &str| ["constants"].into_iter().chain(parts.split(", ")).map(part).collect::<String>();
    line.captures_iter(&text).map(|found| (found[1].to_owned(), whole(&found[2]))).collect()
}

impl Scripts {
    pub fn read() -> Self {
        let files = [
            ("redis", "redis/scripts.rs"),
            ("fast", "redis/fast_path/operations.rs"),
            ("once", "redis/once.rs"),
            ("once batched", "redis/fast_path/records.rs"),
            ("quorum", "quorum/scripts.rs"),
        ];
        let of_file = |(kind, file): (&str, &str)| {
            let texts = texts_in(file).into_iter();
            texts.map(|(name, text)| (format!("{kind} {name}"), text)).collect::<Vec<_>>()
        };
        let texts: Vec<_> = files.into_iter().flat_map(of_file).collect();
        let mut calls = Vec::new();
        for (name, keys, args) in CALLS.into_iter().chain(RECORD_CALLS) {
            let text = &texts
                .iter()
                .find(|(known, _)| known == name)
                .unwrap_or_else(|| panic!("no script {name}"))
                .1;
            let text = format!("{PRELUDE}{text}");
            let hash = hash_of(&text);
            calls.push(Call { name: name.to_owned(), text, hash, keys, args });
        }
        for (name, _) in &texts {
            assert!(calls.iter().any(|call| call.name == *name), "{name} is never called");
        }
        Self { calls, dump_hash: hash_of(DUMP) }
    }
}

fn hash_of(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

/// What the scripts and the gateway call, by the first word of each call.
pub fn called() -> BTreeSet<String> {
    let (mut called, mut paths) = (BTreeSet::new(), vec![source()]);
    let call = Regex::new(r#"(?:redis\.p?call\('|cmd\("|call\(")([A-Z]+)['"]"#).unwrap();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        called.extend(call.captures_iter(code).map(|found| found[1].to_ascii_lowercase()));
    }
    called
}
