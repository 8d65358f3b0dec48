//! Protocols that other tools speak, each translated to the operations of the service. Nothing else knows of them.

use axum::Router;
use axum::routing::{any, get, post};

use crate::api::state::{AppState, Facades};

mod dapr;
mod fleet_lock;
mod owners;
mod steps;
mod terraform;

/// The handlers of those that are spoken.
pub(super) fn routes(spoken: &Facades) -> Router<AppState> {
    let mut router = Router::new();
    if spoken.terraform {
        router = router
            .route("/terraform", any(terraform::lock_or_unlock))
            .route("/terraform/{key}", any(terraform::lock_or_unlock));
    }
    if spoken.dapr {
        router = router
            .route("/v1.0/metadata", get(dapr::metadata))
            .route("/v1.0-alpha1/lock/{store}", post(dapr::try_lock))
            .route("/v1.0-alpha1/unlock/{store}", post(dapr::unlock));
    }
    if !spoken.fleet_lock.is_empty() {
        router = router
            .route("/fleet-lock/v1/pre-reboot", post(fleet_lock::pre_reboot))
            .route("/fleet-lock/v1/steady-state", post(fleet_lock::steady_state));
    }
    router
}
