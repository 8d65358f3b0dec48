//! The scripts of a quorum: what each server of it runs.

use crate::store::redis::scripts::scripts;

scripts! {
    pub(super) ACQUIRE: lock, terms, "scripts/ahead.lua", "scripts/member.lua", "scripts/acquire.lua";
    pub(super) GIVE_UP: lock, "scripts/ahead.lua", "scripts/member.lua", "scripts/give_up.lua";
    pub(super) ROLL_BACK: lock, terms, "scripts/ahead.lua", "scripts/member.lua", "scripts/roll_back.lua";
    pub(super) RELEASE: lock, terms, "scripts/ahead.lua", "scripts/member.lua", "scripts/release.lua";
    pub(super) RENEW: lock, terms, "scripts/ahead.lua", "scripts/member.lua", "scripts/renew.lua";
    pub(super) REPAIR: lock, terms, "scripts/ahead.lua", "scripts/member.lua", "scripts/repair.lua";
    pub(super) INSPECT: lock, "scripts/ahead.lua", "scripts/member.lua", "scripts/inspect.lua";
    pub(super) LIST: lock, "scripts/ahead.lua", "scripts/member.lua", "scripts/list.lua";
    pub(super) BREAK: lock, "scripts/ahead.lua", "scripts/member.lua", "scripts/break.lua";
    pub(super) TAKE_FREE: "scripts/ahead.lua", "member/take_free.lua";
    pub(super) FREE_OWN: "member/free_own.lua";
    pub(super) LOOK: "scripts/look.lua";
    pub(super) RECONFIGURE: "scripts/reconfigure.lua";
    pub(super) HIGH: "scripts/high.lua";
}
