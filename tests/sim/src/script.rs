//! Scripts, run by the same Lua as in a server, in a sandbox like that of a server.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};
use parking_lot::Mutex;

use crate::commands::find;
use crate::reply::{Reply, double};
use crate::state::{State, is_of_scripts};

/// What stands before all scripts. It is given the functions of this file, and returns one that runs a script.
const PRELUDE: &str = r#"
local call, allows, hash = ...
local error, pcall, type, tostring, setmetatable = error, pcall, type, tostring, setmetatable
local function error_reply(text)
    if type(text) ~= 'string' then return { err = 'ERR wrong number or type of arguments' } end
    if string.sub(text, 1, 1) == '-' then text = string.sub(text, 2) end
    return { err = string.find(text, ' ', 1, true) and text or 'ERR ' .. text }
end
redis = {
    call = function(...)
        local reply = call(...)
        if type(reply) == 'table' and reply.err then error(reply) end
        return reply
    end,
    pcall = call,
    error_reply = error_reply,
    status_reply = function(text) return { ok = text } end,
    sha1hex = hash,
    acl_check_cmd = function(...)
        local is_allowed = allows(...)
        if is_allowed == nil then error(error_reply('ERR Invalid command passed to redis.acl_check_cmd()')) end
        return is_allowed
    end,
}
for _, name in pairs({ 'print', 'dofile', 'loadfile', 'newproxy', 'module', 'require', 'package', 'coroutine' }) do
    _G[name] = nil
end
-- Unlike Lua's own, the one of a server returns the text of an error.
_G.pcall = function(...)
    local function told(is_well, why, ...)
        if not is_well and type(why) == 'table' and type(why.err) == 'string' then why = why.err end
        return is_well, why, ...
    end
    return told(pcall(...))
end
setmetatable(_G, {
    __index = function(_, name)
        error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
    end,
    __newindex = function() error('Attempt to modify a readonly table', 2) end,
})
return pcall
"#;

/// The scripts that a server knows.
pub(crate) struct Scripts {
    lua: Lua,
    run: Function,
    /// By their hashes.
    known: BTreeMap<String, Function>,
    /// By their texts, with their hashes. A server that forgot its scripts is sent the same ones, and compiling takes longer than
    /// running them.
    compiled: BTreeMap<Vec<u8>, (String, Function)>,
    /// What stands in the texts, and what is run in its place.
    mistake: Option<(String, String)>,
}

impl Scripts {
    /// Fails only where Lua itself cannot be started, which ends the test.
    pub(crate) fn new(state: &Arc<Mutex<State>>) -> Self {
        #[expect(clippy::expect_used, reason = "a test that cannot go on must fail")]
        Self::try_to_start(state).expect("Lua starts")
    }

    fn try_to_start(state: &Arc<Mutex<State>>) -> mlua::Result<Self> {
        // In a server, as here, nothing but these is used by the scripts of the gateway.
        let options = LuaOptions::new().catch_rust_panics(false);
        let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, options)?;
        let state = state.clone();
        let call = lua.create_function(move |lua, args: MultiValue| {
            let reply = match words_of(&args) {
                Some(words) if words.is_empty() => {
                    Reply::error("ERR Please specify at least one argument for this redis.call() call")
                }
                Some(words) => state.lock().execute_in_script(&words),
                None => Reply::error("ERR Lua redis lib command arguments must be strings or integers"),
            };
            to_lua(lua, reply)
        })?;
        let allows = lua.create_function(|_, args: MultiValue| {
            let words = words_of(&args).unwrap_or_default();
            let is_of_scripts = words.first().is_some_and(|name| is_of_scripts(name));
            // Every user may do everything that there is.
            Ok((is_of_scripts || find(&words).is_some()).then_some(true))
        })?;
        let hash = lua.create_function(|_, text: mlua::LuaString| Ok(hash_of(&text.as_bytes())))?;
        let run = lua.load(PRELUDE).set_name("@prelude").call((call, allows, hash))?;
        Ok(Self { lua, run, known: BTreeMap::new(), compiled: BTreeMap::new(), mistake: None })
    }

    pub(crate) fn knows(&self, hash: &str) -> bool {
        self.known.contains_key(hash)
    }

    pub(crate) fn forget_all(&mut self) {
        self.known.clear();
    }

    pub(crate) fn make_mistake(&mut self, stands: &str, mistake: &str) {
        self.mistake = Some((stands.to_owned(), mistake.to_owned()));
        self.compiled.clear();
    }

    /// Makes a text known by its hash.
    pub(crate) fn load(&mut self, text: &[u8]) -> Result<String, Reply> {
        let (hash, function) = match self.compiled.get(text) {
            Some(compiled) => compiled.clone(),
            None => {
                let compiled = (hash_of(text), self.compile(text)?);
                self.compiled.insert(text.to_owned(), compiled.clone());
                compiled
            }
        };
        self.known.entry(hash.clone()).or_insert(function);
        Ok(hash)
    }

    fn compile(&self, text: &[u8]) -> Result<Function, Reply> {
        let run = match &self.mistake {
            Some((stands, mistake)) => {
                String::from_utf8_lossy(text).replace(stands, mistake).into_bytes().into()
            }
            None => Cow::Borrowed(text),
        };
        self.lua.load(&*run).set_name("@user_script").into_function().map_err(|error| {
            let said = error.to_string();
            let said = said.lines().next().unwrap_or_default();
            Reply::failed(format!("ERR Error compiling script (new function): {said}"))
        })
    }

    /// Runs the script of this hash.
    pub(crate) fn run(&mut self, hash: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Reply {
        match self.try_to_run(hash, keys, args) {
            Ok(reply) => reply,
            Err(error) => Reply::failed(format!("SIMULATION Lua does not go on: {error}")),
        }
    }

    fn try_to_run(&self, hash: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> mlua::Result<Reply> {
        let Some(function) = self.known.get(hash) else {
            return Ok(Reply::error("NOSCRIPT No matching script. Please use EVAL."));
        };
        let globals = self.lua.globals();
        globals.raw_set("KEYS", self.list(keys)?)?;
        globals.raw_set("ARGV", self.list(args)?)?;
        let (is_well, value): (bool, Value) = self.run.call(function)?;
        if is_well { from_lua(value) } else { failure(value, hash) }
    }

    fn list(&self, words: &[Vec<u8>]) -> mlua::Result<Table> {
        let list = self.lua.create_table_with_capacity(words.len(), 0)?;
        for word in words {
            list.raw_push(self.lua.create_string(word)?)?;
        }
        Ok(list)
    }
}

pub(crate) fn hash_of(text: &[u8]) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}

/// Arguments as a command has them; nothing where one is neither a text nor a number.
fn words_of(args: &MultiValue) -> Option<Vec<Vec<u8>>> {
    let word = |value: &Value| match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        Value::Number(number) => Some(double(*number).into_bytes()),
        _ => None,
    };
    args.iter().map(word).collect()
}

/// A reply as a script sees it: in the way of RESP2.
fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let text = |text: &[u8]| lua.create_string(text).map(Value::String);
    match reply {
        Reply::Status(said) => {
            let table = lua.create_table()?;
            table.raw_set("ok", &*said)?;
            Ok(Value::Table(table))
        }
        Reply::Error(said) => {
            let table = lua.create_table()?;
            table.raw_set("err", &*said)?;
            // Behind the function of this file, and that of the prelude, comes the script's own; at `pcall`, at once.
            let at = |level| lua.inspect_stack(level, |frame| frame.current_line()).flatten();
            if let Some(line) = at(2).or_else(|| at(1)) {
                table.raw_set("source", "@user_script")?;
                table.raw_set("line", line)?;
            }
            Ok(Value::Table(table))
        }
        Reply::Int(number) => Ok(Value::Number(number as f64)),
        Reply::Bulk(bytes) => text(&bytes),
        Reply::Verbatim(said) => text(said.as_bytes()),
        Reply::Nil => Ok(Value::Boolean(false)),
        Reply::Double(number) => text(double(number).as_bytes()),
        Reply::Array(replies) | Reply::Map(replies) | Reply::Push(replies) => {
            let table = lua.create_table_with_capacity(replies.len(), 0)?;
            for reply in replies {
                table.raw_push(to_lua(lua, reply)?)?;
            }
            Ok(Value::Table(table))
        }
        Reply::Scored(members) => {
            let table = lua.create_table_with_capacity(2 * members.len(), 0)?;
            for (member, score) in members {
                table.raw_push(text(&member)?)?;
                table.raw_push(double(score))?;
            }
            Ok(Value::Table(table))
        }
    }
}

/// What a script returns, as a reply.
fn from_lua(value: Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Integer(number) => Reply::Int(number),
        // What stands behind the point is lost.
        Value::Number(number) => Reply::Int(number as i64),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => {
            if let Value::String(said) = table.raw_get("err")? {
                return Ok(Reply::failed(said.to_string_lossy()));
            }
            if let Value::String(said) = table.raw_get("ok")? {
                return Ok(Reply::Status(said.to_string_lossy().into()));
            }
            let mut replies = Vec::new();
            for at in 1.. {
                match table.raw_get(at)? {
                    Value::Nil => break,
                    value => replies.push(from_lua(value)?),
                }
            }
            Reply::Array(replies)
        }
        _ => Reply::Nil,
    })
}

/// What a script ended by, as a reply.
fn failure(value: Value, hash: &str) -> mlua::Result<Reply> {
    let (said, line) = match value {
        Value::Table(table) => (table.raw_get("err")?, table.raw_get::<Option<i64>>("line")?),
        Value::String(said) => {
            let said = said.to_string_lossy();
            let line =
                said.strip_prefix("user_script:").and_then(|rest| rest.split_once(':')?.0.parse().ok());
            (format!("ERR {said}"), line)
        }
        _ => ("ERR unknown error".to_owned(), None),
    };
    let at = line.map(|line| format!(" script: {hash}, on @user_script:{line}.")).unwrap_or_default();
    Ok(Reply::failed(said + &at))
}
