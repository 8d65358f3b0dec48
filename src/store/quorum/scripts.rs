//! The scripts of a quorum: what each server of it runs.

use std::sync::LazyLock;

use crate::store::redis::scripts::{Script, script};

pub(super) static ACQUIRE: LazyLock<Script> = script!(
    "../redis/scripts/shared/lock.lua",
    "../redis/scripts/shared/terms.lua",
    "scripts/member.lua",
    "scripts/acquire.lua"
);
pub(super) static GIVE_UP: LazyLock<Script> =
    script!("../redis/scripts/shared/lock.lua", "scripts/member.lua", "scripts/give_up.lua");
pub(super) static ROLL_BACK: LazyLock<Script> = script!(
    "../redis/scripts/shared/lock.lua",
    "../redis/scripts/shared/terms.lua",
    "scripts/member.lua",
    "scripts/roll_back.lua"
);
pub(super) static RELEASE: LazyLock<Script> = script!(
    "../redis/scripts/shared/lock.lua",
    "../redis/scripts/shared/terms.lua",
    "scripts/member.lua",
    "scripts/release.lua"
);
pub(super) static RENEW: LazyLock<Script> = script!(
    "../redis/scripts/shared/lock.lua",
    "../redis/scripts/shared/terms.lua",
    "scripts/member.lua",
    "scripts/renew.lua"
);
pub(super) static REPAIR: LazyLock<Script> = script!(
    "../redis/scripts/shared/lock.lua",
    "../redis/scripts/shared/terms.lua",
    "scripts/member.lua",
    "scripts/repair.lua"
);
pub(super) static INSPECT: LazyLock<Script> =
    script!("../redis/scripts/shared/lock.lua", "scripts/member.lua", "scripts/inspect.lua");
pub(super) static LIST: LazyLock<Script> =
    script!("../redis/scripts/shared/lock.lua", "scripts/member.lua", "scripts/list.lua");
pub(super) static BREAK: LazyLock<Script> =
    script!("../redis/scripts/shared/lock.lua", "scripts/member.lua", "scripts/break.lua");
pub(super) static LOOK: LazyLock<Script> = script!("scripts/look.lua");
pub(super) static RECONFIGURE: LazyLock<Script> = script!("scripts/reconfigure.lua");
pub(super) static HIGH: LazyLock<Script> = script!("scripts/high.lua");
